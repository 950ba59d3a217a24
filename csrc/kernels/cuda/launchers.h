// The CUDA backend as bindings see it. Each launcher puts its work on `stream` (a cudaStream_t) of the current device
// and returns at once, with 0 or a cudaError_t. An op with a workspace says how many bytes of device memory it needs
// for given sizes; the binding allocates them, since kernels don't.
#pragma once

#include <cstdint>

#include "../params.h"

extern "C" {

const char* seer_cuda_error_string(int status);

int seer_cuda_mlp_sparsity(const seer::MlpSparsityParams& p, void* stream);
int seer_cuda_silu_mul_sparsity(const seer::SiluMulSparsityParams& p, void* stream);
int seer_cuda_snr_boundary(const seer::SnrBoundaryParams& p, void* stream);
int seer_cuda_varlen_repack(const seer::VarlenRepackParams& p, void* stream);
int seer_cuda_varlen_unpack(const seer::VarlenUnpackParams& p, void* stream);
int seer_cuda_mask_rewrite(const seer::MaskRewriteParams& p, void* stream);
int seer_cuda_truncate_repack(const seer::TruncateRepackParams& p, void* stream);

int64_t seer_cuda_token_confidence_workspace(const seer::TokenConfidenceParams& p);
int seer_cuda_token_confidence(const seer::TokenConfidenceParams& p, void* workspace, void* stream);

int64_t seer_cuda_commit_tokens_workspace(const seer::CommitTokensParams& p);
int seer_cuda_commit_tokens(const seer::CommitTokensParams& p, void* workspace, void* stream);

}  // extern "C"

// Compiled once per level, with SEER_LEVEL its name. Everything but the table at the end is local to this file or
// forced inline: code shared with other files could be linked from the wrong level.
#include "isa.h"
#include "mask_rewrite.h"
#include "mlp_sparsity.h"
#include "rank_floor.h"
#include "silu_mul_sparsity.h"
#include "snr_boundary.h"
#include "token_confidence.h"

namespace seer::cpu {
namespace {

void run_mask_rewrite(const MaskRewriteParams& p, int64_t begin, int64_t end) { mask_rewrite(p, begin, end); }

void run_mlp_sparsity(const MlpSparsityParams& p, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case DType::kFloat32: return mlp_sparsity<float>(p, begin, end);
    case DType::kBFloat16: return mlp_sparsity<BFloat16>(p, begin, end);
    case DType::kFloat16: return mlp_sparsity<Float16>(p, begin, end);
  }
}

RankFloor run_rank_floor(const uint64_t* keys, int64_t n, int64_t k) { return rank_floor(keys, n, k); }

void run_silu_mul_sparsity(const SiluMulSparsityParams& p, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case DType::kFloat32: return silu_mul_sparsity<float>(p, begin, end);
    case DType::kBFloat16: return silu_mul_sparsity<BFloat16>(p, begin, end);
    case DType::kFloat16: return silu_mul_sparsity<Float16>(p, begin, end);
  }
}

void run_snr_boundary(const SnrBoundaryParams& p, double* workspace, int64_t begin, int64_t end) {
  snr_boundary(p, workspace, begin, end);
}

void run_token_confidence(const TokenConfidenceParams& p, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case DType::kFloat32: return token_confidence<float>(p, begin, end);
    case DType::kBFloat16: return token_confidence<BFloat16>(p, begin, end);
    case DType::kFloat16: return token_confidence<Float16>(p, begin, end);
  }
}

}  // namespace

#define SEER_JOIN(a, b) a##b
#define SEER_TABLE(level) SEER_JOIN(kernels_, level)
#define SEER_QUOTE(level) #level
#define SEER_NAME(level) SEER_QUOTE(level)

extern const IsaKernels SEER_TABLE(SEER_LEVEL);
const IsaKernels SEER_TABLE(SEER_LEVEL) = {SEER_NAME(SEER_LEVEL), run_mask_rewrite, run_mlp_sparsity,    run_rank_floor,
                                           run_silu_mul_sparsity, run_snr_boundary, run_token_confidence};

}  // namespace seer::cpu

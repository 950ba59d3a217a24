#include "commit_tokens.cuh"

#include "launchers.h"

extern "C" int64_t seer_cuda_commit_tokens_workspace(const seer::CommitTokensParams& p) {
  return p.N > seer::cuda::kSharedCandidates ? p.N * static_cast<int64_t>(sizeof(seer::CommitCandidate)) : 0;
}

extern "C" int seer_cuda_commit_tokens(const seer::CommitTokensParams& p, void* workspace, void* stream) {
  using namespace seer::cuda;
  if (p.B == 0) return 0;
  seer::CommitCandidate* const candidates = static_cast<seer::CommitCandidate*>(workspace);
  SEER_LAUNCH(commit_tokens_kernel, grid_size(p.B, 1), kThreads, 0, stream, p, candidates);
  return launch_status();
}

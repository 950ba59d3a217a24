#include "ops/commit_tokens.h"

#include "common.h"
#include "kernels/cpu/commit_tokens.h"

namespace seer::cpu {

std::tuple<Tensor, Tensor> commit_tokens_op(Tensor ids, Tensor slots, Tensor token, Tensor confidence, Tensor cu_slots,
                                            Tensor quota, int64_t mask_id, std::optional<Tensor> threshold) {
  CommitTokensParams p = make_commit_tokens_params(ids, slots, token, confidence, cu_slots, quota, mask_id, threshold);
  const bool repeats = check_commit_tokens_values(p);
  const IsaKernels& kernels = isa_kernels_or_fail("commit_tokens");
  auto outputs = make_commit_tokens_outputs(p, ids);
  torch::stable::parallel_for(0, p.B, rows_per_task(p.N / std::max<int64_t>(1, p.B)),
                              [&](int64_t begin, int64_t end) { commit_tokens(p, kernels, repeats, begin, end); });
  return outputs;
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("commit_tokens", TORCH_BOX(&seer::cpu::commit_tokens_op)); }

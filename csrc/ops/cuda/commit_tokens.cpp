#include "ops/commit_tokens.h"

#include "common.h"

namespace seer::cuda {

std::tuple<Tensor, Tensor> commit_tokens_op(Tensor ids, Tensor slots, Tensor token, Tensor confidence, Tensor cu_slots,
                                            Tensor quota, int64_t mask_id, std::optional<Tensor> threshold) {
  CommitTokensParams p = make_commit_tokens_params(ids, slots, token, confidence, cu_slots, quota, mask_id, threshold);
  const Launch launch(ids);
  if (debug()) {
    const Tensor host_slots = to_host(slots), host_cu_slots = to_host(cu_slots);
    CommitTokensParams host = p;
    host.slots = host_slots.const_data_ptr<int64_t>();
    host.slots_stride = host_slots.stride(0);
    host.cu_slots = index_array(host_cu_slots);
    check_commit_tokens_values(host);
  }
  auto outputs = make_commit_tokens_outputs(p, ids);
  Tensor workspace = new_workspace(ids, seer_cuda_commit_tokens_workspace(p));
  check_launch("commit_tokens", seer_cuda_commit_tokens(p, workspace.mutable_data_ptr(), launch.stream));
  return outputs;
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("commit_tokens", TORCH_BOX(&seer::cuda::commit_tokens_op)); }

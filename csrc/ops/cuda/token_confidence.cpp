#include "ops/token_confidence.h"

#include "common.h"

namespace seer::cuda {

std::tuple<Tensor, Tensor> token_confidence_op(Tensor logits, StringHandle kind, std::optional<Tensor> suppress,
                                               std::optional<Tensor> chosen, std::optional<Tensor> temperature,
                                               std::optional<Tensor> key) {
  TokenConfidenceParams p = make_token_confidence_params(logits, kind, suppress, chosen, temperature, key);
  const Launch launch(logits);
  if (debug()) {
    TokenConfidenceParams host = p;
    std::optional<Tensor> host_suppress, host_chosen;  // the copies live as long as they are read
    if (suppress) {
      host_suppress = to_host(*suppress);
      host.suppress = host_suppress->const_data_ptr<int64_t>();
      host.suppress_stride = host_suppress->stride(0);
    }
    if (chosen) {
      host_chosen = to_host(*chosen);
      host.chosen = host_chosen->const_data_ptr<int64_t>();
      host.chosen_stride = host_chosen->stride(0);
    }
    check_token_confidence_values(host);
  }
  auto outputs = make_token_confidence_outputs(p, logits);
  Tensor workspace = new_workspace(logits, seer_cuda_token_confidence_workspace(p));
  const int status = seer_cuda_token_confidence(p, workspace.mutable_data_ptr(), launch.stream);
  check_launch("token_confidence", status);
  return outputs;
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("token_confidence", TORCH_BOX(&seer::cuda::token_confidence_op)); }

#include "ops/token_confidence.h"

#include "common.h"

namespace seer::cpu {

std::tuple<Tensor, Tensor> token_confidence_op(Tensor logits, StringHandle kind, std::optional<Tensor> suppress,
                                               std::optional<Tensor> chosen, std::optional<Tensor> temperature,
                                               std::optional<Tensor> key) {
  TokenConfidenceParams p = make_token_confidence_params(logits, kind, suppress, chosen, temperature, key);
  check_token_confidence_values(p);
  const IsaKernels& kernels = isa_kernels_or_fail("token_confidence");
  std::vector<int64_t> suppressed(p.S);  // ascending, as the kernel meets them
  for (int64_t i = 0; i < p.S; ++i) suppressed[i] = p.suppress[i * p.suppress_stride];
  std::sort(suppressed.begin(), suppressed.end());
  p.suppress = suppressed.data();
  p.suppress_stride = 1;
  auto outputs = make_token_confidence_outputs(p, logits);
  torch::stable::parallel_for(0, p.N, rows_per_task(p.V),
                              [&](int64_t begin, int64_t end) { kernels.token_confidence(p, begin, end); });
  return outputs;
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("token_confidence", TORCH_BOX(&seer::cpu::token_confidence_op)); }

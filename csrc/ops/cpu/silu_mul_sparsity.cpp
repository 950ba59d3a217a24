#include "ops/silu_mul_sparsity.h"

#include "common.h"

namespace seer::cpu {

std::tuple<Tensor, Tensor> silu_mul_sparsity_op(Tensor gate, Tensor up, double threshold) {
  SiluMulSparsityParams p = make_silu_mul_sparsity_params(gate, up, threshold);
  const IsaKernels& kernels = isa_kernels_or_fail("silu_mul_sparsity");
  auto outputs = make_silu_mul_sparsity_outputs(p, gate);
  torch::stable::parallel_for(0, p.R, rows_per_task(p.I),
                              [&](int64_t begin, int64_t end) { kernels.silu_mul_sparsity(p, begin, end); });
  return outputs;
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("silu_mul_sparsity", TORCH_BOX(&seer::cpu::silu_mul_sparsity_op)); }

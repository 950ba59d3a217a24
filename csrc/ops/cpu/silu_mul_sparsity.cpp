#include "ops/silu_mul_sparsity.h"

#include "common.h"

namespace seer::cpu {

std::tuple<Tensor, Tensor> silu_mul_sparsity_op(Tensor gate, Tensor up, double threshold) {
  SiluMulSparsityParams p = make_silu_mul_sparsity_params(gate, up, threshold);
  const IsaKernels& kernels = isa_kernels_or_fail("silu_mul_sparsity");
  const auto sizes = gate.sizes();
  Tensor act = new_output(gate, {sizes.begin(), sizes.end()}, gate.scalar_type());
  Tensor sparsity = new_output(gate, outer_sizes(gate), ScalarType::Float);
  p.act = act.mutable_data_ptr();
  p.sparsity = sparsity.mutable_data_ptr<float>();
  torch::stable::parallel_for(0, p.R, rows_per_task(p.I),
                              [&](int64_t begin, int64_t end) { kernels.silu_mul_sparsity(p, begin, end); });
  return {act, sparsity};
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("silu_mul_sparsity", TORCH_BOX(&seer::cpu::silu_mul_sparsity_op)); }

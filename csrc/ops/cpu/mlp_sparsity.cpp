#include "ops/mlp_sparsity.h"

#include "common.h"

namespace seer::cpu {

Tensor mlp_sparsity_op(Tensor act, double threshold) {
  MlpSparsityParams p = make_mlp_sparsity_params(act, threshold);
  const IsaKernels& kernels = isa_kernels_or_fail("mlp_sparsity");
  Tensor sparsity = make_mlp_sparsity_outputs(p, act);
  torch::stable::parallel_for(0, p.R, rows_per_task(p.I),
                              [&](int64_t begin, int64_t end) { kernels.mlp_sparsity(p, begin, end); });
  return sparsity;
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("mlp_sparsity", TORCH_BOX(&seer::cpu::mlp_sparsity_op)); }

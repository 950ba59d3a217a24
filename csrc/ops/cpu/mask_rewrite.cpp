#include "ops/mask_rewrite.h"

#include "common.h"

namespace seer::cpu {

void mask_rewrite_op(Tensor mask, Tensor columns, Tensor lengths) {
  const MaskRewriteParams p = make_mask_rewrite_params(mask, columns, lengths);
  check_mask_rewrite_values(p);
  const IsaKernels& kernels = isa_kernels_or_fail("mask_rewrite");
  if (p.L == 0) return;
  torch::stable::parallel_for(0, p.B * p.Q, rows_per_task(p.L),
                              [&](int64_t begin, int64_t end) { kernels.mask_rewrite(p, begin, end); });
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("mask_rewrite", TORCH_BOX(&seer::cpu::mask_rewrite_op)); }

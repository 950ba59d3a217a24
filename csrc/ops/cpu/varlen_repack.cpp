#include "ops/varlen_repack.h"

#include "common.h"
#include "kernels/cpu/varlen_repack.h"

namespace seer::cpu {

Tensor varlen_repack_op(Tensor x, Tensor starts, Tensor cu_seqlens, int64_t capacity) {
  VarlenRepackParams p = make_varlen_repack_params(x, starts, cu_seqlens, capacity);
  check_varlen_repack_values(p);
  Tensor out = make_varlen_repack_outputs(p, x);
  torch::stable::parallel_for(0, capacity, rows_per_task(p.x.token_bytes()),
                              [&](int64_t begin, int64_t end) { varlen_repack(p, begin, end); });
  return out;
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("varlen_repack", TORCH_BOX(&seer::cpu::varlen_repack_op)); }

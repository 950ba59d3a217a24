#include "ops/varlen_unpack.h"

#include "common.h"
#include "kernels/cpu/varlen_unpack.h"

namespace seer::cpu {

Tensor varlen_unpack_op(Tensor packed, Tensor columns, Tensor cu_seqlens, int64_t length, double fill) {
  VarlenUnpackParams p = make_varlen_unpack_params(packed, columns, cu_seqlens, length, fill);
  check_varlen_unpack_values(p);
  Tensor out = make_varlen_unpack_outputs(p, packed);
  torch::stable::parallel_for(0, p.B * length, rows_per_task(p.packed.token_bytes()),
                              [&](int64_t begin, int64_t end) { varlen_unpack(p, begin, end); });
  return out;
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("varlen_unpack", TORCH_BOX(&seer::cpu::varlen_unpack_op)); }

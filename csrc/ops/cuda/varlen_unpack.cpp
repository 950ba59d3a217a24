#include "ops/varlen_unpack.h"

#include "common.h"

namespace seer::cuda {

Tensor varlen_unpack_op(Tensor packed, Tensor columns, Tensor cu_seqlens, int64_t length, double fill) {
  VarlenUnpackParams p = make_varlen_unpack_params(packed, columns, cu_seqlens, length, fill);
  const Launch launch(packed);
  if (debug()) {
    const Tensor host_columns = to_host(columns), host_cu_seqlens = to_host(cu_seqlens);
    VarlenUnpackParams host = p;
    host.columns = index_array(host_columns);
    host.cu_seqlens = index_array(host_cu_seqlens);
    check_varlen_unpack_values(host);
  }
  Tensor out = make_varlen_unpack_outputs(p, packed);
  check_launch("varlen_unpack", seer_cuda_varlen_unpack(p, launch.stream));
  return out;
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("varlen_unpack", TORCH_BOX(&seer::cuda::varlen_unpack_op)); }

#include "ops/varlen_repack.h"

#include "common.h"

namespace seer::cuda {

Tensor varlen_repack_op(Tensor x, Tensor starts, Tensor cu_seqlens, int64_t capacity) {
  VarlenRepackParams p = make_varlen_repack_params(x, starts, cu_seqlens, capacity);
  const Launch launch(x);
  if (debug()) {
    const Tensor host_starts = to_host(starts), host_cu_seqlens = to_host(cu_seqlens);
    VarlenRepackParams host = p;
    host.starts = index_array(host_starts);
    host.cu_seqlens = index_array(host_cu_seqlens);
    check_varlen_repack_values(host);
  }
  Tensor out = make_varlen_repack_outputs(p, x);
  check_launch("varlen_repack", seer_cuda_varlen_repack(p, launch.stream));
  return out;
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("varlen_repack", TORCH_BOX(&seer::cuda::varlen_repack_op)); }

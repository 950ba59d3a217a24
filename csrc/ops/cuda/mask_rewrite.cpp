#include "ops/mask_rewrite.h"

#include "common.h"

namespace seer::cuda {

void mask_rewrite_op(Tensor mask, Tensor columns, Tensor lengths) {
  const MaskRewriteParams p = make_mask_rewrite_params(mask, columns, lengths);
  const Launch launch(mask);
  if (debug()) {
    const Tensor host_columns = to_host(columns), host_lengths = to_host(lengths);
    MaskRewriteParams host = p;
    host.columns = index_array(host_columns);
    host.lengths = index_array(host_lengths);
    check_mask_rewrite_values(host);
  }
  check_launch("mask_rewrite", seer_cuda_mask_rewrite(p, launch.stream));
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("mask_rewrite", TORCH_BOX(&seer::cuda::mask_rewrite_op)); }

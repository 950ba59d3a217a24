#include "ops/snr_boundary.h"

#include "common.h"

namespace seer::cuda {

std::tuple<Tensor, Tensor> snr_boundary_op(Tensor sparsity, std::optional<Tensor> lengths, int64_t window,
                                           double min_snr, double plateau, double min_jump, int64_t min_keep) {
  SnrBoundaryParams p = make_snr_boundary_params(sparsity, lengths, window, min_snr, plateau, min_jump, min_keep);
  const Launch launch(sparsity);
  if (lengths && debug()) {
    const Tensor host_lengths = to_host(*lengths);
    SnrBoundaryParams host = p;
    host.lengths = index_array(host_lengths);
    check_snr_boundary_values(host);
  }
  auto outputs = make_snr_boundary_outputs(p, sparsity);
  check_launch("snr_boundary", seer_cuda_snr_boundary(p, launch.stream));
  return outputs;
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("snr_boundary", TORCH_BOX(&seer::cuda::snr_boundary_op)); }

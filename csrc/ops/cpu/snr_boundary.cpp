#include "ops/snr_boundary.h"

#include "common.h"

namespace seer::cpu {

std::tuple<Tensor, Tensor> snr_boundary_op(Tensor sparsity, std::optional<Tensor> lengths, int64_t window,
                                           double min_snr, double plateau, double min_jump, int64_t min_keep) {
  SnrBoundaryParams p = make_snr_boundary_params(sparsity, lengths, window, min_snr, plateau, min_jump, min_keep);
  check_snr_boundary_values(p);
  const IsaKernels& kernels = isa_kernels_or_fail("snr_boundary");
  auto outputs = make_snr_boundary_outputs(p, sparsity);
  torch::stable::parallel_for(0, p.B, rows_per_task(p.G * std::min(p.G, 2 * std::min(p.window, p.G))),
                              [&](int64_t begin, int64_t end) {
                                std::vector<double> workspace(4 * p.G);
                                kernels.snr_boundary(p, workspace.data(), begin, end);
                              });
  return outputs;
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("snr_boundary", TORCH_BOX(&seer::cpu::snr_boundary_op)); }

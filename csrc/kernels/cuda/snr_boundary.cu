#include "snr_boundary.cuh"

#include "launchers.h"

extern "C" int seer_cuda_snr_boundary(const seer::SnrBoundaryParams& p, void* stream) {
  using namespace seer::cuda;
  if (p.B == 0) return 0;
  SEER_LAUNCH(snr_boundary_kernel, grid_size(p.B, 1), kThreads, 0, stream, p);
  return launch_status();
}

// The slot from which a row's sparsity jumps to a plateau that lasts to its end. Cuts are tested side by side; one warp
// then picks in ascending order, as the definition does.
#pragma once

#include "../params.h"
#include "../snr_boundary.h"
#include "common.cuh"

namespace seer::cuda {

// Grid: x over rows.
static __global__ void __launch_bounds__(kThreads) snr_boundary_kernel(const __grid_constant__ SnrBoundaryParams p) {
  SEER_SHARED(double, snrs, kThreads);  // of the cuts that pass; NaN for the others
  SEER_SHARED(double, best_of_row, 1);
  const int lane = lane_of();
  for (int64_t b = blockIdx.x; b < p.B; b += gridDim.x) {
    const float* s = p.sparsity + b * p.row_stride;
    const int64_t n = p.length_of(b);
    int64_t best = n;
    double best_snr = 0.0;
    for (int64_t first = p.min_keep; first < n; first += kThreads) {
      const int64_t j = first + threadIdx.x;
      Jump jump = {0.0, 0.0, false};
      if (j < n) jump = jump_at(p, s, n, j);
      // The best only rises, so a cut that doesn't exceed an earlier one never will.
      bool passes =
          jump.passes && (first == p.min_keep || best_of_row[0] != best_of_row[0] || exceeds(jump.snr, best_of_row[0]));
      // The warp counts the plateau of one lane's cut at a time: it is the only test that reads the rest of the row.
      unsigned open = __ballot_sync(kAllLanes, passes);
      while (open != 0) {
        const int owner = __ffs(static_cast<int>(open)) - 1;
        open &= open - 1;
        const double level = __shfl_sync(kAllLanes, jump.level, owner);
        const int64_t cut = j - lane + owner;
        int64_t above = 0;
        for (int64_t i = cut + lane; i < n; i += kWarp) above += static_cast<double>(s[i]) > level ? 1 : 0;
        above = warp_sum(above);
        if (lane == owner) passes = is_plateau(p, above, n - cut);
      }
      snrs[threadIdx.x] = passes ? jump.snr : static_cast<double>(__builtin_nan(""));
      __syncthreads();
      if (warp_of() == 0) {
        for (int at = 0; at < kThreads; at += kWarp) {
          const double snr = snrs[at + lane];
          // Lanes before the winner have lost to the same best, so each ballot's lowest lane is next in order.
          for (int from = 0;;) {
            const bool wins = lane >= from && snr == snr && (best == n || exceeds(snr, best_snr));
            const unsigned winners = __ballot_sync(kAllLanes, wins);
            if (winners == 0) break;
            const int winner = __ffs(static_cast<int>(winners)) - 1;
            best = first + at + winner;
            best_snr = __shfl_sync(kAllLanes, snr, winner);
            from = winner + 1;
          }
        }
        if (lane == 0) best_of_row[0] = best == n ? static_cast<double>(__builtin_nan("")) : best_snr;
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      p.boundary[b] = static_cast<int32_t>(best);
      p.snr[b] = static_cast<float>(best_snr);
    }
  }
}

}  // namespace seer::cuda

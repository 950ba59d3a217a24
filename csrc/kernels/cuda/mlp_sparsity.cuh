// Share of each row's activations below the threshold. Counts are integers, hence exact in any order.
#pragma once

#include "../mlp_sparsity.h"
#include "../params.h"
#include "common.cuh"

namespace seer::cuda {

// Grid: x over teams of kWarps warps, one row at a time each. I is whole vectors of kCount.
template <typename T, int kCount, int kWarps>
__global__ void __launch_bounds__(kThreads) mlp_sparsity_kernel(const __grid_constant__ MlpSparsityParams p) {
  constexpr int kTeam = kWarps * kWarp, kTeams = kThreads / kTeam;
  const int thread = threadIdx.x % kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < p.R; r += int64_t{gridDim.x} * kTeams) {
    const T* row = static_cast<const T*>(p.act) + p.act_rows.offset(r);
    uint32_t count = 0;
#pragma unroll 4
    for (int64_t i = int64_t{thread} * kCount; i < p.I; i += kTeam * kCount) {
      const Vector<T, kCount> act = load_vector<kCount>(row + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) count += is_below(to_float(act.values[k]), p.threshold) ? 1 : 0;
    }
    const int64_t sum = team_sum<kWarps>(count);
    if (thread == 0) p.sparsity[r] = share_of(sum, p.I);
  }
}

}  // namespace seer::cuda

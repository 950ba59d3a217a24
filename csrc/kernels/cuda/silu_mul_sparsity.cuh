// act = silu(gate) * up in float32, rounded once, and the share of act below the threshold: one pass over memory.
#pragma once

#include "../math.h"
#include "../mlp_sparsity.h"
#include "../params.h"
#include "common.cuh"

namespace seer::cuda {

// Grid: x over teams of kWarps warps, one row at a time each. I is whole vectors of kCount.
template <typename T, int kCount, int kWarps>
__global__ void __launch_bounds__(kThreads) silu_mul_sparsity_kernel(const __grid_constant__ SiluMulSparsityParams p) {
  constexpr int kTeam = kWarps * kWarp, kTeams = kThreads / kTeam;
  const int thread = threadIdx.x % kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < p.R; r += int64_t{gridDim.x} * kTeams) {
    const T* gate_row = static_cast<const T*>(p.gate) + p.gate_rows.offset(r);
    const T* up_row = static_cast<const T*>(p.up) + p.up_rows.offset(r);
    T* act_row = static_cast<T*>(p.act) + r * p.I;
    uint32_t count = 0;
    for (int64_t i = int64_t{thread} * kCount; i < p.I; i += kTeam * kCount) {
      const Vector<T, kCount> gate = load_vector<kCount>(gate_row + i), up = load_vector<kCount>(up_row + i);
      Vector<T, kCount> act;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        act.values[k] = from_float<T>(silu(to_float(gate.values[k])) * to_float(up.values[k]));
        count += is_below(to_float(act.values[k]), p.threshold) ? 1 : 0;
      }
      store_vector(act_row + i, act);
    }
    const int64_t sum = team_sum<kWarps>(count);
    if (thread == 0) p.sparsity[r] = share_of(sum, p.I);
  }
}

}  // namespace seer::cuda

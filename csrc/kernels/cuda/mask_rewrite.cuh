// Hides all columns of an attention mask but a range per row, in place. No query is left without a key.
#pragma once

#include "../mask_rewrite.h"
#include "common.cuh"

namespace seer::cuda {

// Grid: x over teams of kWarps warps, one query at a time each. L is whole vectors of kCount.
template <typename Mask, int kCount, int kWarps>
__global__ void __launch_bounds__(kThreads) mask_rewrite_kernel(const __grid_constant__ MaskRewriteParams p) {
  using Element = typename Mask::Element;
  constexpr int kTeam = kWarps * kWarp, kTeams = kThreads / kTeam;
  const int thread = threadIdx.x % kTeam;
  const int64_t queries = p.B * p.Q;
  for (int64_t i = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; i < queries; i += int64_t{gridDim.x} * kTeams) {
    const int64_t b = i / p.Q;
    Element* const query = static_cast<Element*>(p.mask) + b * p.row_stride + (i - b * p.Q) * p.query_stride;
    const int64_t first = p.begin_of(b), last = p.end_of(b);
    int any = 0;
#pragma unroll 1  // more would spill
    for (int64_t at = int64_t{thread} * kCount; at < p.L; at += kTeam * kCount) {
      Vector<Element, kCount> entries = load_vector<kCount>(query + at);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const bool visible = at + k >= first && at + k < last && Mask::visible(entries.values[k]);
        entries.values[k] = visible ? entries.values[k] : Mask::hidden();
        any |= visible ? 1 : 0;
      }
      store_vector(query + at, entries);
    }
    // The sum also orders this thread's store after those of its team.
    const int64_t sum = team_sum<kWarps>(any);
    if (kWarps == 1) __syncwarp(kAllLanes);
    if (thread == 0 && sum == 0) query[p.fallback_of(b)] = Mask::shown();
  }
}

}  // namespace seer::cuda

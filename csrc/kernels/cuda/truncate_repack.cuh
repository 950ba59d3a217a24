// Cuts every row to its kept length and packs hidden states, ids, positions and row numbers in one launch. Every block
// adds up the lengths for itself, up to the tokens that it writes: that is cheaper than a launch to share the sums.
#pragma once

#include "token_copy.cuh"

namespace seer::cuda {

// Inclusive sums over the block, in `sums`.
__device__ __forceinline__ void block_scan(int64_t value, int64_t* sums) {
  const int thread = threadIdx.x;
  sums[thread] = value;
  __syncthreads();
  for (int distance = 1; distance < kThreads; distance *= 2) {
    const int64_t before = thread >= distance ? sums[thread - distance] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
}

// Grid: x over groups of output tokens, y over parts of a token.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    truncate_repack_kernel(const __grid_constant__ TruncateRepackParams p, const __grid_constant__ CopyPlan plan) {
  SEER_SHARED(int64_t, ends, kThreads);
  SEER_SHARED(int64_t, sources, kThreads);
  const int thread = threadIdx.x;
  const bool writes_offsets = blockIdx.x == 0 && blockIdx.y == 0;
  const int64_t step = int64_t{gridDim.x} * plan.tokens;
  // The first group is there even if there is no token to write: its first block writes cu_seqlens.
  for (int64_t first = int64_t{blockIdx.x} * plan.tokens; first == 0 || first < p.capacity; first += step) {
    const int64_t at = first + thread;
    const bool active = thread < plan.tokens && at < p.capacity;
    const bool all_rows = writes_offsets && first == 0;
    int64_t row = -1, skipped = 0;
    int64_t start = 0;  // of the rows from base on
    for (int64_t base = 0; base < p.B && (all_rows || start < first + plan.tokens); base += kThreads) {
      const int64_t b = base + thread;
      block_scan(b < p.B ? clamped(p.lengths[b], p.capacity) : 0, ends);
      if (all_rows && b < p.B) p.cu_seqlens[b + 1] = static_cast<int32_t>(clamped(start + ends[thread], p.capacity));
      if (active && row < 0 && start + ends[kThreads - 1] > at) {
        int low = 0, high = kThreads - 1;  // to the first row that ends after `at`
        while (low < high) {
          const int middle = (low + high) / 2;
          if (start + ends[middle] > at) {
            high = middle;
          } else {
            low = middle + 1;
          }
        }
        row = base + low;
        skipped = at - start - (low > 0 ? ends[low - 1] : 0);
      }
      start += ends[kThreads - 1];
      __syncthreads();
    }
    if (all_rows && thread == 0) p.cu_seqlens[0] = 0;
    if (active) {
      int64_t source = -1;
      if (row >= 0) {
        const int64_t from = p.starts[row];
        // Compared before they are added: nothing overflows, whatever the device holds.
        if (from >= 0 && from < p.N && skipped < p.N - from) source = from + skipped;
      }
      sources[thread] = source;
      if (blockIdx.y == 0) {
        const int64_t offset = row >= 0 && p.offsets.data ? p.offsets[row] : 0;
        p.ids_out[at] = source >= 0 ? p.ids[source * p.ids_stride] : 0;
        p.positions[at] = row >= 0 ? static_cast<int32_t>(static_cast<uint64_t>(offset) + skipped) : 0;
        p.rows[at] = static_cast<int32_t>(row);
      }
    }
    __syncthreads();
    copy_tokens(plan, sources, first, p.capacity, Unit{}, p.hidden_out);
    __syncthreads();
  }
}

}  // namespace seer::cuda

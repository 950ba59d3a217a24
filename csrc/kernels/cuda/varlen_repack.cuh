// Moves ranges of tokens into one packed tensor: row b's tokens from starts[b] on go to cu_seqlens[b] on.
#pragma once

#include "token_copy.cuh"

namespace seer::cuda {

// The row of packed token `at`, by bisection: the first that ends after it; B where none does. Ends anywhere in [0, B]
// if the offsets don't ascend.
__device__ __forceinline__ int64_t row_of(const IndexArray& cu_seqlens, int64_t B, int64_t at) {
  int64_t low = 0, high = B;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (cu_seqlens[middle + 1] > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Grid: x over groups of output tokens, y over parts of a token.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    varlen_repack_kernel(const __grid_constant__ VarlenRepackParams p, const __grid_constant__ CopyPlan plan) {
  SEER_SHARED(int64_t, sources, kThreads);
  const int64_t step = int64_t{gridDim.x} * plan.tokens;
  for (int64_t first = int64_t{blockIdx.x} * plan.tokens; first < p.capacity; first += step) {
    const int64_t at = first + threadIdx.x;
    if (static_cast<int>(threadIdx.x) < plan.tokens && at < p.capacity) {
      const int64_t b = row_of(p.cu_seqlens, p.B, at);
      int64_t source = -1;
      if (b < p.B) {
        const int64_t start = p.starts[b], skipped = at - p.cu_seqlens[b];
        // Compared before they are added: nothing overflows, whatever the device holds.
        if (start >= 0 && start < p.N && skipped >= 0 && skipped < p.N - start) source = start + skipped;
      }
      sources[threadIdx.x] = source;
    }
    __syncthreads();
    copy_tokens(plan, sources, first, p.capacity, Unit{}, p.out);
    __syncthreads();
  }
}

}  // namespace seer::cuda

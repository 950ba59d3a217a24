// Moves packed rows to their columns of a padded tensor, and fills what lies around them.
#pragma once

#include "token_copy.cuh"

namespace seer::cuda {

// `element` in each place of a unit.
template <typename Unit>
__host__ __device__ inline Unit fill_unit(uint64_t element, int element_size) {
  for (int bytes = element_size; bytes < 8; bytes *= 2) {
    const uint64_t low = element & ((uint64_t{1} << (8 * bytes)) - 1);
    element = low | (low << (8 * bytes));
  }
  return static_cast<Unit>(element);
}

template <>
__host__ __device__ inline Unit16 fill_unit<Unit16>(uint64_t element, int element_size) {
  const uint64_t half = fill_unit<uint64_t>(element, element_size);
  return {half, half};
}

// Grid: x over groups of output tokens, counted through the rows, y over parts of a token.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    varlen_unpack_kernel(const __grid_constant__ VarlenUnpackParams p, const __grid_constant__ CopyPlan plan) {
  SEER_SHARED(int64_t, sources, kThreads);
  const int64_t end = p.B * p.length, step = int64_t{gridDim.x} * plan.tokens;
  const Unit fill = fill_unit<Unit>(p.fill, p.packed.element_size);
  for (int64_t first = int64_t{blockIdx.x} * plan.tokens; first < end; first += step) {
    const int64_t at = first + threadIdx.x;
    if (static_cast<int>(threadIdx.x) < plan.tokens && at < end) {
      const int64_t b = at / p.length, column = at - b * p.length;
      const int64_t start = p.columns[b];
      const int64_t from = clamped(p.cu_seqlens[b], p.T), to = clamped(p.cu_seqlens[b + 1], p.T);
      int64_t source = -1;
      if (start <= column) {
        // Counted from below as unsigned: a start far below 0 doesn't overflow.
        const uint64_t skipped = static_cast<uint64_t>(column) - static_cast<uint64_t>(start);
        if (from < to && skipped < static_cast<uint64_t>(to - from)) source = from + static_cast<int64_t>(skipped);
      }
      sources[threadIdx.x] = source;
    }
    __syncthreads();
    copy_tokens(plan, sources, first, end, fill, p.out);
    __syncthreads();
  }
}

}  // namespace seer::cuda

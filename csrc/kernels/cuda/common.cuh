// What the kernels share: vectors of elements, reductions over a warp and a block, grid sizes, the choice of a path.
#pragma once

#include <cstdint>

#include "../types.h"
#include "compat.cuh"

namespace seer::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kThreads = 256;  // of a block, unless a kernel says otherwise
constexpr int kVectorBytes = 16;

// Loaded and stored by one instruction.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

template <typename T>
constexpr int kVectorSize = kVectorBytes / static_cast<int>(sizeof(T));

template <int kCount, typename T>
__device__ __forceinline__ Vector<T, kCount> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}

template <int kCount, typename T>
__device__ __forceinline__ void store_vector(T* to, const Vector<T, kCount>& vector) {
  *reinterpret_cast<Vector<T, kCount>*>(to) = vector;
}

__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp_of() { return static_cast<int>(threadIdx.x) / kWarp; }

// Every lane gets the result of `combine` over the warp, in a fixed order.
template <typename T, typename Combine>
__device__ __forceinline__ T warp_reduce(T value, Combine combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_reduce(value, [](T a, T b) { return a + b; });
}

// NaN never wins.
__device__ __forceinline__ float warp_max(float value) {
  return warp_reduce(value, [](float a, float b) { return b > a ? b : a; });
}

__device__ __forceinline__ int64_t warp_min(int64_t value) {
  return warp_reduce(value, [](int64_t a, int64_t b) { return b < a ? b : a; });
}

// The sum over the kWarps warps of a team, which are a block or a single warp each; every thread gets it.
template <int kWarps>
__device__ __forceinline__ int64_t team_sum(int64_t value) {
  value = warp_sum(value);
  if (kWarps == 1) return value;
  SEER_SHARED(int64_t, partial, kWarps);
  if (lane_of() == 0) partial[warp_of()] = value;
  __syncthreads();
  int64_t sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += partial[w];
  __syncthreads();  // `partial` may be written anew
  return sum;
}

// One row is read by a warp up to this many elements, by a block beyond.
constexpr int64_t kWarpRow = 2048;

// Tests compile with a small one, so that the loops over the grid go round.
#if !defined(SEER_MAX_BLOCKS)
#define SEER_MAX_BLOCKS (1 << 20)
#endif

// Blocks that loop over what is left: enough to fill any device, and few enough for any grid.
inline unsigned grid_size(int64_t items, int64_t per_block) {
  constexpr int64_t kMaxBlocks = SEER_MAX_BLOCKS;
  const int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

// Whether every row starts where a vector of `bytes` may.
inline bool rows_aligned(const void* data, const RowLayout& rows, int64_t element_size, int64_t bytes) {
  bool aligned = reinterpret_cast<uintptr_t>(data) % bytes == 0;
  for (int d = 0; d < rows.num_dims; ++d) aligned = aligned && rows.strides[d] * element_size % bytes == 0;
  return aligned;
}

// Calls f with a value of the element type that `dtype` stands for.
template <typename F>
int dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBFloat16: return f(BFloat16{});
    case DType::kFloat16: return f(Float16{});
    default: return f(float{});
  }
}

}  // namespace seer::cuda

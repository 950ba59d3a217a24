// Token and confidence of each row of logits, read from memory once. A warp takes a tile at a time into shared memory;
// a block merges a power of two of tiles, which is a subtree of the row's; where a row has several blocks, a second
// launch merges theirs.
#pragma once

#include "../token_confidence.h"
#include "common.cuh"

namespace seer::cuda {

constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxTiles = 128;  // per block

// All threads of the block. parts[0] becomes the balanced tree over parts[0 .. count).
__device__ inline void merge_tree(ConfidencePart* parts, int64_t count) {
  for (int64_t step = 1; step < count; step *= 2) {
    for (int64_t low = threadIdx.x * 2 * step; low + step < count; low += kThreads * 2 * step) {
      parts[low] = merge_parts(parts[low], parts[low + step]);
    }
    __syncthreads();
  }
}

// All lanes. Widens the `count` logits of a tile; NaN becomes -inf, as does the rest.
template <typename T, int kCount>
__device__ __forceinline__ void load_tile(const T* logits, int count, float* tile) {
  constexpr int kLoads = kConfidenceTile / (kWarp * kCount);
  Vector<T, kCount> loaded[kLoads];
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const int at = (n * kWarp + lane_of()) * kCount;
    if (at < count) loaded[n] = load_vector<kCount>(logits + at);
  }
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const int at = (n * kWarp + lane_of()) * kCount;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float x = at < count ? to_float(loaded[n].values[k]) : -kInfinity;
      tile[at + k] = x == x ? x : -kInfinity;
    }
  }
}

// All lanes; lane j owns the ids congruent to j, which are those of sum j.
template <bool kEntropy>
__device__ __forceinline__ ConfidencePart summarize(const TokenConfidenceParams& p, const float* tile, int64_t first,
                                                    float max) {
  const int lane = lane_of();
  ConfidencePart part = empty_part();
  int64_t place = INT64_MAX;
  int count = 0;
  float second = -kInfinity;
  double others = 0.0, weighted = 0.0;
#pragma unroll 2
  for (int i = lane; i < kConfidenceTile; i += kWarp) {
    const float x = tile[i];
    if (x == max) {
      place = first + i < place ? first + i : place;
      ++count;
    } else {
      second = x > second ? x : second;
    }
    const double d = static_cast<double>(x == max ? -kInfinity : x) - static_cast<double>(max);
    const double e = exp_nonpositive_double(d);
    others += e;
    if (kEntropy) weighted += weighted_exp(d, e);
  }
  count = warp_sum(count);
  part.max = max;
  part.argmax = warp_min(place);
  part.second = count > 1 ? max : warp_max(second);
  // warp_sum adds the lanes in the order of kConfidenceLanes.
  part.others = static_cast<double>(count - 1) + warp_sum(others);
  if (kEntropy) part.weighted = warp_sum(weighted);
  return part;
}

// All lanes.
__device__ __forceinline__ void sample(float temperature, uint64_t stream, const float* tile, int64_t first,
                                       ConfidencePart& part) {
  float score = -kInfinity;
  int64_t place = INT64_MAX;
  for (int i = lane_of(); i < kConfidenceTile; i += kWarp) {
    const float x = tile[i] + temperature * counter_gumbel(stream, first + i);
    place = x > score ? first + i : place;
    score = x > score ? x : score;
  }
  part.score = warp_max(score);
  place = warp_min(score == part.score ? place : INT64_MAX);
  part.sampled = part.score > -kInfinity ? place : -1;
}

// Grid: x over rows, y over parts of `tiles` tiles. A row's `parts` go to the workspace, unless it has one only.
template <typename T, int kCount, bool kEntropy>
__global__ void __launch_bounds__(kThreads)
    token_confidence_kernel(const __grid_constant__ TokenConfidenceParams p, int tiles, ConfidencePart* parts) {
  SEER_SHARED(float, all_tiles, kWarps* kConfidenceTile);
  SEER_SHARED(ConfidencePart, merged, kMaxTiles);
  float* const tile = all_tiles + warp_of() * kConfidenceTile;
  for (int64_t n = blockIdx.x; n < p.N; n += gridDim.x) {
    const T* logits = static_cast<const T*>(p.logits) + n * p.row_stride;
    const float temperature = temperature_of(p, n);
    const uint64_t stream = temperature > 0.0f ? mix64(static_cast<uint64_t>(p.key[n * p.key_stride])) : 0;
    float best_score = -kInfinity;
    for (int t = warp_of(); t < tiles; t += kWarps) {
      const int64_t first = (int64_t{blockIdx.y} * tiles + t) * kConfidenceTile;
      const int64_t rest = p.V - first;
      const int count = rest < kConfidenceTile ? static_cast<int>(rest > 0 ? rest : 0) : kConfidenceTile;
      load_tile<T, kCount>(logits + first, count, tile);
      __syncwarp(kAllLanes);
      // A lane changes none but its own ids.
      for (int64_t i = 0; i < p.S; ++i) {
        const int64_t at = p.suppress[i * p.suppress_stride] - first;
        if (at >= 0 && at < count && at % kWarp == lane_of()) tile[at] = -kInfinity;
      }
      float max = -kInfinity;
      for (int i = lane_of(); i < kConfidenceTile; i += kWarp) max = tile[i] > max ? tile[i] : max;
      max = warp_max(max);
      ConfidencePart part = empty_part();
      if (max > -kInfinity) part = summarize<kEntropy>(p, tile, first, max);
      // No noise can lift a tile of lower logits above the best score.
      if (temperature > 0.0f && max + temperature * kGumbelMax > best_score) {
        sample(temperature, stream, tile, first, part);
        best_score = part.score > best_score ? part.score : best_score;
      }
      if (lane_of() == 0) merged[t] = part;
      __syncwarp(kAllLanes);
    }
    __syncthreads();
    merge_tree(merged, tiles);
    if (threadIdx.x == 0) {
      if (gridDim.y > 1) {
        parts[n * gridDim.y + blockIdx.y] = merged[0];
      } else {
        finish_row(p, n, logits, merged[0]);
      }
    }
    __syncthreads();
  }
}

// Grid: x over rows.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    merge_rows_kernel(const __grid_constant__ TokenConfidenceParams p, int64_t parts_per_row, ConfidencePart* parts) {
  for (int64_t n = blockIdx.x; n < p.N; n += gridDim.x) {
    ConfidencePart* const row = parts + n * parts_per_row;
    merge_tree(row, parts_per_row);
    if (threadIdx.x == 0) finish_row(p, n, static_cast<const T*>(p.logits) + n * p.row_stride, row[0]);
  }
}

}  // namespace seer::cuda

// Writes tokens, dense, from tokens at any stride: what repacking and unpacking have in common. Blocks share the
// output: each finds the sources of a few tokens, or of a part of one, then copies by the widest accesses that fit.
#pragma once

#include "../params.h"
#include "common.cuh"

namespace seer::cuda {

// Sizes count units: accesses of sizeof(Unit) bytes. A block writes `units` of each of `tokens` tokens.
struct CopyPlan {
  TokenLayout from;   // runs merged where they follow each other
  int64_t run_units;  // per run
  int64_t token_units;
  int32_t tokens, units;
  unsigned grid_x, grid_y;  // over tokens, in strides of the grid, and over the units of one
};

constexpr int kCopyUnits = 2048;  // per block: eight for each thread
constexpr int kCopyBatch = 4;     // loads in flight per thread

// Where token n lies, or run r of it.
template <typename Unit>
__device__ __forceinline__ const Unit* source_of(const CopyPlan& plan, int64_t n, int64_t r) {
  const int64_t element = plan.from.rows.offset(n * plan.from.runs + r);
  return reinterpret_cast<const Unit*>(static_cast<const char*>(plan.from.data) + element * plan.from.element_size);
}

// All threads of the block. sources[i] is where output token `first + i` comes from, -1 for one that is `fill`.
template <typename Unit>
__device__ void copy_tokens(const CopyPlan& plan, const int64_t* sources, int64_t first, int64_t end, Unit fill,
                            void* out) {
  const int64_t begin = int64_t{blockIdx.y} * plan.units;
  const int64_t rest = plan.token_units - begin;
  const int32_t units = rest < plan.units ? static_cast<int32_t>(rest) : plan.units;  // of each token
  const int32_t tokens = end - first < plan.tokens ? static_cast<int32_t>(end - first) : plan.tokens;
  const int32_t total = units > 0 ? units * tokens : 0;
  Unit* const to = static_cast<Unit*>(out) + first * plan.token_units + begin;
  for (int32_t base = threadIdx.x; base < total; base += kThreads * kCopyBatch) {
    Unit batch[kCopyBatch];
#pragma unroll
    for (int k = 0; k < kCopyBatch; ++k) {
      const int32_t i = base + k * kThreads;
      batch[k] = fill;
      if (i >= total) continue;
      const int32_t token = i / units;
      const int64_t source = sources[token];
      if (source < 0) continue;
      const int64_t unit = begin + i - token * units;
      if (plan.from.runs == 1) {
        batch[k] = source_of<Unit>(plan, source, 0)[unit];
      } else {
        const int64_t r = unit / plan.run_units;
        batch[k] = source_of<Unit>(plan, source, r)[unit - r * plan.run_units];
      }
    }
#pragma unroll
    for (int k = 0; k < kCopyBatch; ++k) {
      const int32_t i = base + k * kThreads;
      if (i >= total) continue;
      const int32_t token = i / units;
      to[token * plan.token_units + (i - token * units)] = batch[k];
    }
  }
}

// `unit` divides every run. `count` tokens are written.
inline CopyPlan plan_copy(TokenLayout from, int64_t unit, int64_t count) {
  CopyPlan plan{};
  RowLayout& rows = from.rows;
  const int last = rows.num_dims - 1;
  if (from.runs > 1 && rows.strides[last] == from.run && (last == 0 || rows.sizes[last] == from.runs)) {
    from.run *= from.runs;  // the runs of a token follow each other
    if (last == 0) {
      rows.strides[0] = from.run;
    } else {
      --rows.num_dims;
    }
    from.runs = 1;
  }
  plan.from = from;
  plan.run_units = from.run * from.element_size / unit;
  plan.token_units = from.token_bytes() / unit;
  constexpr int64_t kMaxGridY = 65535;
  const int64_t least = (plan.token_units + kMaxGridY - 1) / kMaxGridY, most = least > kCopyUnits ? least : kCopyUnits;
  plan.units = static_cast<int32_t>(plan.token_units < most ? plan.token_units : most);
  const int32_t fit = plan.units > 0 ? kCopyUnits / plan.units : kThreads;
  plan.tokens = fit < 1 ? 1 : fit < kThreads ? fit : kThreads;
  plan.grid_x = grid_size(count, plan.tokens);
  const int64_t parts = plan.units > 0 ? (plan.token_units + plan.units - 1) / plan.units : 1;
  plan.grid_y = static_cast<unsigned>(parts);
  return plan;
}

struct alignas(16) Unit16 {
  uint64_t low, high;
};

// Calls f with a value of the widest unit that every run of the source, and the output, can be accessed by.
template <typename F>
int dispatch_unit(const TokenLayout& from, const void* out, F&& f) {
  const auto fits = [&](int64_t unit) {
    return from.run * from.element_size % unit == 0 && reinterpret_cast<uintptr_t>(out) % unit == 0 &&
           rows_aligned(from.data, from.rows, from.element_size, unit);
  };
  if (fits(16)) return f(Unit16{});
  if (fits(8)) return f(uint64_t{});
  if (fits(4)) return f(uint32_t{});
  if (fits(2)) return f(uint16_t{});
  return f(uint8_t{});
}

}  // namespace seer::cuda

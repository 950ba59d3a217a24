// Token and confidence of each row of logits, read from memory once: a row goes by in tiles that stay in L1.
#pragma once

#include "../token_confidence.h"
#include "vec.h"

namespace seer::cpu::confidence {

constexpr int kTile = kConfidenceTile;  // a tile and its scores take 8 KiB
using Doubles = Pack<double, kVectors>;
constexpr int kParts = kConfidenceLanes / Doubles::kPartLanes;  // vectors that hold the lanes' sums

SEER_INLINE Doubles load_doubles(const float* from) {
  Doubles r;
  for (int i = 0; i < kVectors; ++i) {
#if defined(__AVX512F__)
    r.part[i] = _mm512_cvtps_pd(_mm256_loadu_ps(from + i * Doubles::kPartLanes));
#elif defined(__AVX2__)
    r.part[i] = _mm256_cvtps_pd(_mm_loadu_ps(from + i * Doubles::kPartLanes));
#else
    for (int j = 0; j < Doubles::kPartLanes; ++j) r.part[i][j] = from[i * Doubles::kPartLanes + j];
#endif
  }
  return r;
}

SEER_INLINE float tile_max(const float* tile) {
  Floats max = splat<Floats>(-kInfinity);
  for (int i = 0; i < kTile; i += kFloats) max = larger(load_floats(tile + i), max);
  return largest(max);
}

// Widens `count` logits from vocab id `first` on and returns their maximum. Suppressed ids and NaN become -inf, as does
// the rest of the tile. `next` counts up through the ascending suppressed ids.
template <typename T>
SEER_INLINE float load_tile(const TokenConfidenceParams& p, const T* row, int64_t first, int count, int64_t& next,
                            float* tile) {
  const T* logits = row + first;
  Floats max = splat<Floats>(-kInfinity);
  int i = 0;
  for (; i + kFloats <= count; i += kFloats) {
    const Floats x = load_floats(logits + i);
    store(tile + i, select(x == x, x, splat<Floats>(-kInfinity)));
    max = larger(x, max);
  }
  if (count == kTile && (next == p.S || p.suppress[next] >= first + count)) return largest(max);
  for (; i < count; ++i) {
    const float x = to_float(logits[i]);
    tile[i] = x == x ? x : -kInfinity;
  }
  for (; i < kTile; ++i) tile[i] = -kInfinity;
  for (; next < p.S && p.suppress[next] < first + count; ++next) tile[p.suppress[next] - first] = -kInfinity;
  return tile_max(tile);
}

// The lowest index of a value that the tile holds.
SEER_INLINE int index_of(const float* tile, float value) {
  int i = 0;
  while (tile[i] != value) ++i;
  return i;
}

// Puts -inf for all places of a value and returns how many there were.
SEER_INLINE int take_out(float* tile, float value) {
  SignedOf<OneVector> minus = {};  // a true comparison is -1
  for (int i = 0; i < kTile; i += kFloats) {
    const Floats x = load_floats(tile + i);
    const SignedOf<Floats> equal = x == value;
    minus = minus + sum_of_vectors(equal);
    store(tile + i, select(equal, splat<Floats>(-kInfinity), x));
  }
  return -sum_of(minus);
}

// The values from lane `first` on to the lanes' sums, in ascending order: a pack may hold several of a lane's.
SEER_INLINE void add_to_lanes(const Doubles& values, int first, Doubles::Part* sums) {
  for (int i = 0; i < kVectors; ++i) {
    sums[(first / Doubles::kPartLanes + i) % kParts] += values.part[i];
  }
}

SEER_INLINE double sum_of_lanes(const Doubles::Part* sums) {
  double lanes[kConfidenceLanes];
  memcpy(lanes, sums, sizeof(lanes));
  for (int half = kConfidenceLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

template <bool kEntropy>
SEER_INLINE void add_exponentials(const float* tile, ConfidencePart& part) {
  constexpr int kStep = Doubles::kLanes < kConfidenceLanes ? kConfidenceLanes : Doubles::kLanes;
  Doubles::Part sums[kParts] = {}, weighted[kParts] = {};
  for (int i = 0; i < kTile; i += kStep) {
    for (int k = 0; k < kStep; k += Doubles::kLanes) {
      const Doubles d = load_doubles(tile + i + k) - static_cast<double>(part.max);
      const Doubles e = exp_nonpositive_double(d);
      add_to_lanes(e, k, sums);
      if (kEntropy) add_to_lanes(weighted_exp(d, e), k, weighted);
    }
  }
  part.others += sum_of_lanes(sums);
  if (kEntropy) part.weighted += sum_of_lanes(weighted);
}

// A score that isn't above `best` needs no place.
SEER_INLINE void sample(float temperature, uint64_t stream, int64_t first, float best, const float* tile,
                        ConfidencePart& part) {
  float scores[kTile];
  for (int i = 0; i < kTile; ++i) scores[i] = tile[i] + temperature * counter_gumbel(stream, first + i);
  const float score = tile_max(scores);
  if (!(score > best)) return;
  part.score = score;
  part.sampled = first + index_of(scores, score);
}

// `max` is the tile's, and not -inf. `best` is that of the tiles before: only a tile above it may hold the row's
// maximum, whose place is looked for. The tile loses its maximum.
SEER_INLINE void summarize(ConfidenceKind kind, int64_t first, float max, float best, float* tile,
                           ConfidencePart& part) {
  part.argmax = first + (max > best ? index_of(tile, max) : 0);
  part.max = max;
  const int count = take_out(tile, max);
  part.others = count - 1;
  if (kind == ConfidenceKind::kMargin) part.second = count > 1 ? max : tile_max(tile);
  if (kind == ConfidenceKind::kEntropy) {
    add_exponentials<true>(tile, part);
  } else {
    add_exponentials<false>(tile, part);
  }
}

}  // namespace seer::cpu::confidence

namespace seer::cpu {

// Rows [begin, end). `p.suppress` is ascending and dense.
template <typename T>
SEER_INLINE void token_confidence(const TokenConfidenceParams& p, int64_t begin, int64_t end) {
  using namespace confidence;
  alignas(64) float tile[kTile];
  ConfidencePart complete[64];  // subtrees that wait for their right neighbour, as the ones of a binary counter
  for (int64_t n = begin; n < end; ++n) {
    const T* logits = static_cast<const T*>(p.logits) + n * p.row_stride;
    const float temperature = temperature_of(p, n);
    const uint64_t stream = temperature > 0.0f ? mix64(static_cast<uint64_t>(p.key[n * p.key_stride])) : 0;
    float best = -kInfinity, best_score = -kInfinity;
    int64_t next = 0;
    int depth = 0;
    for (int64_t t = 0, first = 0; first < p.V; ++t, first += kTile) {
      const int count = static_cast<int>(p.V - first < kTile ? p.V - first : kTile);
      const float max = load_tile(p, logits, first, count, next, tile);
      ConfidencePart part = empty_part();
      // No noise can lift a tile of lower logits above the best score.
      if (temperature > 0.0f && max + temperature * kGumbelMax > best_score) {
        sample(temperature, stream, first, best_score, tile, part);
      }
      if (max > -kInfinity) summarize(p.kind, first, max, best, tile, part);
      best = max > best ? max : best;
      best_score = part.score > best_score ? part.score : best_score;
      for (int64_t bit = t; bit & 1; bit >>= 1) part = merge_parts(complete[--depth], part);
      complete[depth++] = part;
    }
    ConfidencePart row = depth > 0 ? complete[--depth] : empty_part();
    while (depth > 0) row = merge_parts(complete[--depth], row);
    finish_row(p, n, logits, row);
  }
}

}  // namespace seer::cpu

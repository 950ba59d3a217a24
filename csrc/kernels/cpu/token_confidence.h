// Token and confidence of each row of logits, read from memory once. A row goes by in blocks that stay in L1: a block
// is widened to float, its maximum found, and its exponentials summed in double relative to the running maximum. The
// sums leave out the term of the maximum itself, so that 1 / (1 + sum) keeps what 1 + sum would round away. Every sum
// has a fixed order: a row's result depends on nothing but the row.
#pragma once

#include "../math.h"
#include "../params.h"
#include "../rng.h"

namespace seer::cpu::confidence {

constexpr int kBlock = 1024;  // floats; a block and its scores take 8 KiB
constexpr int kLanes = 16;    // partial results side by side: compilers vectorise them without reordering a sum
constexpr float kInfinity = __builtin_inff();

// The softmax of what was seen so far, relative to its maximum.
struct Softmax {
  float max;
  float second;     // runner-up, kept for the margin only
  int64_t argmax;   // lowest index of the maximum; -1: nothing allowed yet
  double others;    // sum of exp(d), d = logit - max, over all but the argmax
  double weighted;  // sum of d * exp(d) over the same, kept for the entropy only
};

// Widens `count` logits from vocab id `first` on. Suppressed ids and NaN become -inf, as does the rest of the block.
// `next` counts up through the ascending suppressed ids.
template <typename T>
SEER_INLINE void load_block(const TokenConfidenceParams& p, const T* row, int64_t first, int count, int64_t& next,
                            float* block) {
  for (int i = 0; i < count; ++i) {
    const float x = to_float(row[first + i]);
    block[i] = x == x ? x : -kInfinity;
  }
  for (int i = count; i < kBlock; ++i) block[i] = -kInfinity;
  for (; next < p.S && p.suppress[next] < first + count; ++next) block[p.suppress[next] - first] = -kInfinity;
}

SEER_INLINE float block_max(const float* block) {
  float lanes[kLanes];
  for (int j = 0; j < kLanes; ++j) lanes[j] = -kInfinity;
  for (int i = 0; i < kBlock; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = block[i + j] > lanes[j] ? block[i + j] : lanes[j];
  }
  float max = lanes[0];
  for (int j = 1; j < kLanes; ++j) max = lanes[j] > max ? lanes[j] : max;
  return max;
}

// The lowest index of a value that the block holds.
SEER_INLINE int index_of(const float* block, float value) {
  int i = 0;
  while (block[i] != value) ++i;
  return i;
}

template <bool kEntropy>
SEER_INLINE void add_exponentials(const float* block, Softmax& s) {
  if (s.max == kInfinity) {  // the softmax's limit: infinite logits share everything, finite ones have nothing
    for (int i = 0; i < kBlock; ++i) s.others += block[i] == kInfinity ? 1.0 : 0.0;
    return;
  }
  const double max = s.max;
  double sums[kLanes] = {}, weighted[kLanes] = {};
  for (int i = 0; i < kBlock; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const double d = static_cast<double>(block[i + j]) - max;
      const double e = exp_nonpositive_double(d);
      sums[j] += e;
      if (kEntropy) weighted[j] += (d >= -708.0 ? d : -708.0) * e;  // e is 0 below; -inf * 0 would be NaN
    }
  }
  for (int j = 0; j < kLanes; ++j) s.others += sums[j];
  if (kEntropy) {
    for (int j = 0; j < kLanes; ++j) s.weighted += weighted[j];
  }
}

// Makes `max`, found at vocab id `argmax`, what all sums are relative to. The old maximum becomes one of the others.
SEER_INLINE void raise_max(float max, int64_t argmax, Softmax& s) {
  if (s.argmax >= 0) {
    const double shift = static_cast<double>(s.max) - static_cast<double>(max);
    const double factor = exp_nonpositive_double(shift);
    s.weighted = factor > 0.0 ? factor * (s.weighted + shift * (s.others + 1.0)) : 0.0;
    s.others = factor * (s.others + 1.0);
  }
  s.second = s.max;
  s.max = max;
  s.argmax = argmax;
}

// `max` is the block's, and not -inf.
SEER_INLINE void add_block(ConfidenceKind kind, int64_t first, float max, float* block, Softmax& s) {
  if (max > s.max) {
    const int at = index_of(block, max);
    raise_max(max, first + at, s);
    block[at] = -kInfinity;  // its own term stays out of the sums
  }
  if (kind == ConfidenceKind::kEntropy) {
    add_exponentials<true>(block, s);
    return;
  }
  if (kind == ConfidenceKind::kMargin) {
    const float second = block_max(block);
    s.second = second > s.second ? second : s.second;
  }
  add_exponentials<false>(block, s);
}

// The best of logits + temperature * noise, lowest index first.
struct Sample {
  float score;
  float logit;    // without noise
  int64_t token;  // -1: none yet
};

SEER_INLINE void sample_block(float temperature, uint64_t stream, int64_t first, float max, const float* block,
                              Sample& best) {
  if (!(max + temperature * kGumbelMax > best.score)) return;  // no noise can lift this block above the best
  float scores[kBlock];
  for (int i = 0; i < kBlock; ++i) scores[i] = block[i] + temperature * counter_gumbel(stream, first + i);
  const float top = block_max(scores);
  if (!(top > best.score)) return;
  const int at = index_of(scores, top);
  best = {top, block[at], first + at};
}

SEER_INLINE double probability(float logit, const Softmax& s) {
  const double d = static_cast<double>(logit) - static_cast<double>(s.max);
  return (logit == s.max ? 1.0 : exp_nonpositive_double(d)) / (1.0 + s.others);
}

// -inf where the id isn't allowed.
SEER_INLINE float allowed_logit(const TokenConfidenceParams& p, float logit, int64_t token) {
  if (logit != logit) return -kInfinity;
  for (int64_t i = 0; i < p.S && p.suppress[i] <= token; ++i) {
    if (p.suppress[i] == token) return -kInfinity;
  }
  return logit;
}

}  // namespace seer::cpu::confidence

namespace seer::cpu {

// Rows [begin, end). `p.suppress` is ascending and dense.
template <typename T>
SEER_INLINE void token_confidence(const TokenConfidenceParams& p, int64_t begin, int64_t end) {
  using namespace confidence;
  alignas(64) float block[kBlock];
  for (int64_t n = begin; n < end; ++n) {
    const T* row = static_cast<const T*>(p.logits) + n * p.row_stride;
    const float temperature = p.temperature ? p.temperature[n * p.temperature_stride] : 0.0f;
    const bool sampled = temperature > 0.0f;
    const uint64_t stream = sampled ? mix64(static_cast<uint64_t>(p.key[n * p.key_stride])) : 0;
    Softmax s = {-kInfinity, -kInfinity, -1, 0.0, 0.0};
    Sample sample = {-kInfinity, -kInfinity, -1};
    int64_t next = 0;
    for (int64_t first = 0; first < p.V; first += kBlock) {
      const int count = static_cast<int>(p.V - first < kBlock ? p.V - first : kBlock);
      load_block(p, row, first, count, next, block);
      const float max = block_max(block);
      if (max == -kInfinity) continue;
      if (sampled) sample_block(temperature, stream, first, max, block, sample);
      add_block(p.kind, first, max, block, s);
    }

    int64_t token = s.argmax < 0 ? 0 : s.argmax;
    float logit = s.max;
    if (p.chosen) {
      token = p.chosen[n * p.chosen_stride];
      logit = allowed_logit(p, to_float(row[token]), token);
    } else if (sample.token >= 0) {
      token = sample.token;
      logit = sample.logit;
    }
    double confidence = 0.0;
    if (s.argmax < 0) {
      // nothing is allowed: no confidence of any kind
    } else if (p.kind == ConfidenceKind::kProb) {
      confidence = probability(logit, s);
    } else if (p.kind == ConfidenceKind::kMargin) {
      confidence = probability(s.max, s) - probability(s.second, s);
    } else {
      confidence = s.weighted / (1.0 + s.others) - __builtin_log1p(s.others);
    }
    p.token[n] = token;
    p.confidence[n] = confidence;
  }
}

}  // namespace seer::cpu

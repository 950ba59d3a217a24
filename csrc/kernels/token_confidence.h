// How a row of logits is put together from its parts, one source for every backend. A row is cut into tiles; a tile's
// exponentials are relative to its own maximum and summed in double, lane by lane; then neighbours are merged as a
// balanced binary tree. All of it has one fixed order, so every backend gives the same bits, however it shares the
// work. Sums leave out the term of the maximum itself, so that 1 / (1 + sum) keeps what 1 + sum would round away.
#pragma once

#include "math.h"
#include "params.h"
#include "rng.h"

namespace seer {

constexpr int kConfidenceTile = 1024;  // vocab ids
constexpr int kConfidenceLanes = 32;   // id i of a tile is added to sum i % 32; then sums j and j + 16, j + 8, ...
constexpr float kInfinity = __builtin_inff();

struct ConfidencePart {
  double others;    // sum of exp(d), d = logit - max, over all but the argmax
  double weighted;  // sum of d * exp(d) over the same, kept for the entropy only
  int64_t argmax;   // lowest id of the maximum; -1: nothing allowed
  int64_t sampled;  // lowest id of the best score; -1: none
  float max;
  float second;  // runner-up, kept for the margin only
  float score;   // best of logit + temperature * noise
};

SEER_INLINE ConfidencePart empty_part() { return {0.0, 0.0, -1, -1, -kInfinity, -kInfinity, -kInfinity}; }

// d * e, where e = exp(d) is 0 below -708 and -inf * 0 would be NaN. F is double or a vector.
template <typename F>
SEER_INLINE F weighted_exp(F d, F e) {
  return larger(d, splat<F>(-708.0)) * e;
}

// The ids of `a` come before those of `b`.
SEER_INLINE ConfidencePart merge_parts(const ConfidencePart& a, const ConfidencePart& b) {
  const bool later = b.max > a.max;
  ConfidencePart out = later ? b : a;
  const ConfidencePart& lower = later ? a : b;
  if (lower.argmax >= 0) {
    const double shift = lower.max == out.max ? 0.0 : static_cast<double>(lower.max) - static_cast<double>(out.max);
    const double factor = exp_nonpositive_double(shift);
    if (factor > 0.0) {
      out.weighted += factor * (lower.weighted + shift * (lower.others + 1.0));
      out.others += factor * (lower.others + 1.0);
    }
    out.second = lower.max > out.second ? lower.max : out.second;
  }
  const bool sampled_later = b.score > a.score;
  out.score = sampled_later ? b.score : a.score;
  out.sampled = sampled_later ? b.sampled : a.sampled;
  return out;
}

// As a multiple of the maximum's.
SEER_INLINE double relative_probability(float logit, const ConfidencePart& row) {
  if (logit == row.max) return 1.0;
  return exp_nonpositive_double(static_cast<double>(logit) - static_cast<double>(row.max));
}

// -inf where the id isn't allowed.
template <typename T>
SEER_INLINE float allowed_logit(const TokenConfidenceParams& p, const T* logits, int64_t id) {
  if (id < 0 || id >= p.V) return -kInfinity;
  for (int64_t i = 0; i < p.S; ++i) {
    if (p.suppress[i * p.suppress_stride] == id) return -kInfinity;
  }
  const float logit = to_float(logits[id]);
  return logit == logit ? logit : -kInfinity;
}

SEER_INLINE float temperature_of(const TokenConfidenceParams& p, int64_t n) {
  return p.temperature ? p.temperature[n * p.temperature_stride] : 0.0f;
}

// Row n's results, from all of its parts merged.
template <typename T>
SEER_INLINE void finish_row(const TokenConfidenceParams& p, int64_t n, const T* logits, const ConfidencePart& row) {
  int64_t token = row.argmax < 0 ? 0 : row.argmax;
  float logit = row.max;
  if (p.chosen || row.sampled >= 0) {
    token = p.chosen ? p.chosen[n * p.chosen_stride] : row.sampled;
    logit = allowed_logit(p, logits, token);
  }
  double numerator = 0.0, log_total = 0.0;
  if (row.argmax < 0) {
    // nothing is allowed: no confidence of any kind
  } else if (p.kind == ConfidenceKind::kProb) {
    numerator = relative_probability(logit, row);
  } else if (p.kind == ConfidenceKind::kMargin) {
    numerator = 1.0 - relative_probability(row.second, row);
  } else {
    numerator = row.weighted;
    log_total = log1p_nonnegative_double(row.others);
  }
  p.token[n] = token;
  p.confidence[n] = numerator / (1.0 + row.others) - log_total;
}

}  // namespace seer

// The slot from which a row's sparsity jumps to a plateau that lasts to its end. Double arithmetic, two passes,
// ascending index, no contraction: every backend and the Python definition agree on each boundary.
#pragma once

#include <cmath>
#include <cstdint>

#include "../params.h"

namespace seer::cpu {

struct Moments {
  double mean;
  double squares;  // sum of squared deviations
};

inline Moments moments_of(const float* s, int64_t begin, int64_t end) {
  double sum = 0.0;
  for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(s[i]);
  const double mean = sum / static_cast<double>(end - begin);
  double squares = 0.0;
  for (int64_t i = begin; i < end; ++i) {
    const double deviation = static_cast<double>(s[i]) - mean;
    squares += deviation * deviation;
  }
  return {mean, squares};
}

inline double share_above(const float* s, int64_t begin, int64_t end, double level) {
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) count += static_cast<double>(s[i]) > level ? 1 : 0;
  return static_cast<double>(count) / static_cast<double>(end - begin);
}

// Comparisons are written so that a NaN signal or snr drops its candidate.
inline void find_boundary(const SnrBoundaryParams& p, int64_t b) {
  const float* s = p.sparsity + b * p.row_stride;
  const int64_t n = p.length_of(b);
  const int64_t window = p.window < n ? p.window : n;
  int64_t best = n;
  double best_snr = 0.0;
  for (int64_t j = p.min_keep; j < n; ++j) {
    const int64_t left = j > window ? j - window : 0;
    const int64_t right = n - j > window ? j + window : n;
    const Moments before = moments_of(s, left, j), after = moments_of(s, j, right);
    const double signal = after.mean - before.mean;
    const double variance = (before.squares + after.squares) / static_cast<double>(right - left);
    const double deviation = std::sqrt(variance);
    const double noise = deviation < 1e-3 ? 1e-3 : deviation;
    const double snr = signal / noise;
    if (!(signal > p.min_jump && snr >= p.min_snr)) continue;
    if (best < n && !(snr - best_snr > 1e-9 * std::fabs(best_snr))) continue;
    // Last, as the only check that reads the whole rest of the row.
    if (!(share_above(s, j, n, before.mean + signal / 2) >= p.plateau)) continue;
    best = j;
    best_snr = snr;
  }
  p.boundary[b] = static_cast<int32_t>(best);
  p.snr[b] = static_cast<float>(best_snr);
}

// Rows [begin, end).
inline void snr_boundary(const SnrBoundaryParams& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) find_boundary(p, b);
}

}  // namespace seer::cpu

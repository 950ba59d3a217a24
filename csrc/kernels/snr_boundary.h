// The jump-to-plateau test of one cut, one source for every backend. Double arithmetic, two passes, ascending index, no
// contraction: all backends and the Python definition agree on each boundary.
#pragma once

#include <cmath>
#include <cstdint>

#include "params.h"

namespace seer {

struct Moments {
  double mean;
  double squares;  // sum of squared deviations
};

// S is float or double.
template <typename S>
SEER_INLINE Moments moments_of(const S* s, int64_t begin, int64_t end) {
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

struct Jump {
  double snr;
  double level;  // the middle of the rise
  bool passes;   // all tests but that of the plateau
};

// Of a cut between two windows that hold `slots` slots together.
SEER_INLINE double snr_of(const Moments& before, const Moments& after, int64_t slots) {
  const double deviation = std::sqrt((before.squares + after.squares) / static_cast<double>(slots));
  const double noise = deviation < 1e-3 ? 1e-3 : deviation;
  return (after.mean - before.mean) / noise;
}

// Comparisons are written so that a NaN signal or snr doesn't pass.
SEER_INLINE Jump judge(const SnrBoundaryParams& p, double mean_before, double mean_after, double snr) {
  const double signal = mean_after - mean_before;
  return {snr, mean_before + signal / 2, signal > p.min_jump && snr >= p.min_snr};
}

// The cut before slot j of a row of n.
SEER_INLINE Jump jump_at(const SnrBoundaryParams& p, const float* s, int64_t n, int64_t j) {
  const int64_t left = j > p.window ? j - p.window : 0;
  const int64_t right = n - j > p.window ? j + p.window : n;
  const Moments before = moments_of(s, left, j), after = moments_of(s, j, right);
  return judge(p, before.mean, after.mean, snr_of(before, after, right - left));
}

// The share of slots from the cut on that a plateau asks for; `above` of them exceed the jump's level.
SEER_INLINE bool is_plateau(const SnrBoundaryParams& p, int64_t above, int64_t slots) {
  return static_cast<double>(above) / static_cast<double>(slots) >= p.plateau;
}

// Whether a later cut wins over the best so far. Rounding noise between equal cuts doesn't.
SEER_INLINE bool exceeds(double snr, double best_snr) { return snr - best_snr > 1e-9 * std::fabs(best_snr); }

}  // namespace seer

// The slot from which a row's sparsity jumps to a plateau that lasts to its end. Windows that start side by side are
// worked on side by side, each in the order it has alone; a window right of one candidate is left of another, so each
// is computed once.
#pragma once

#include "../snr_boundary.h"
#include "vec.h"

namespace seer::cpu {

// means[k], squares[k]: those of s[k:k+window], the last ones cut at n.
SEER_INLINE void window_moments(const double* s, int64_t n, int64_t window, double* means, double* squares) {
  using Doubles = Pack<double, 4>;
  const auto from = [](const double* x) { return load<double, 4>(x); };
  const int64_t full = n - window + 1 < Doubles::kLanes ? 0 : n - window + 1;
  for (int64_t first = 0; first < full; first += Doubles::kLanes) {
    const int64_t k = first < full - Doubles::kLanes ? first : full - Doubles::kLanes;  // the last ones overlap
    Doubles sum = {}, sum_of_squares = {};
    for (int64_t i = k; i < k + window; ++i) sum = sum + from(s + i);
    const Doubles mean = sum / static_cast<double>(window);
    for (int64_t i = k; i < k + window; ++i) {
      const Doubles deviation = from(s + i) - mean;
      sum_of_squares = sum_of_squares + deviation * deviation;
    }
    store(means + k, mean);
    store(squares + k, sum_of_squares);
  }
  for (int64_t k = full; k < n; ++k) {
    const Moments m = moments_of(s, k, n - k > window ? k + window : n);
    means[k] = m.mean;
    squares[k] = m.squares;
  }
}

// No float lies between the level and the float next below it.
SEER_INLINE int64_t count_above(const float* s, int64_t begin, int64_t end, double level) {
  float floor = static_cast<float>(level);
  if (static_cast<double>(floor) > level) floor = __builtin_nextafterf(floor, -__builtin_inff());
  int32_t count = 0;
  for (int64_t i = begin; i < end; ++i) count += s[i] > floor ? 1 : 0;
  return count;
}

// `workspace` has room for 4 G doubles.
SEER_INLINE void find_boundary(const SnrBoundaryParams& p, int64_t b, double* workspace) {
  const float* s = p.sparsity + b * p.row_stride;
  const int64_t n = p.length_of(b);
  if (p.min_keep >= n) {  // no candidate; it may be too large to be added to
    p.boundary[b] = static_cast<int32_t>(n);
    p.snr[b] = 0.0f;
    return;
  }
  const int64_t window = p.window < n ? p.window : n;
  double *wide = workspace, *means = wide + p.G, *squares = means + p.G, *snrs = squares + p.G;
  for (int64_t i = 0; i < n; ++i) wide[i] = static_cast<double>(s[i]);
  window_moments(wide, n, window, means, squares);

  const auto after = [=](int64_t j) { return Moments{means[j], squares[j]}; };
  const auto before = [=](int64_t j) { return j < window ? moments_of(wide, 0, j) : after(j - window); };
  const auto snr_at = [=](int64_t j) {
    return snr_of(before(j), after(j), (j < window ? j : window) + (n - j < window ? n - j : window));
  };
  int64_t j = p.min_keep;
  for (; j < n && j < window; ++j) snrs[j] = snr_at(j);
  for (; j + window <= n; ++j) snrs[j] = snr_of(after(j - window), after(j), 2 * window);  // several at once
  for (; j < n; ++j) snrs[j] = snr_at(j);

  int64_t best = n;
  double best_snr = 0.0;
  for (j = p.min_keep; j < n; ++j) {
    if (!(snrs[j] >= p.min_snr) || (best < n && !exceeds(snrs[j], best_snr))) continue;
    const Jump jump = judge(p, before(j).mean, means[j], snrs[j]);
    // Last, as the only check that reads the whole rest of the row.
    if (!jump.passes || !is_plateau(p, count_above(s, j, n, jump.level), n - j)) continue;
    best = j;
    best_snr = jump.snr;
  }
  p.boundary[b] = static_cast<int32_t>(best);
  p.snr[b] = static_cast<float>(best_snr);
}

// Rows [begin, end).
SEER_INLINE void snr_boundary(const SnrBoundaryParams& p, double* workspace, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) find_boundary(p, b, workspace);
}

}  // namespace seer::cpu

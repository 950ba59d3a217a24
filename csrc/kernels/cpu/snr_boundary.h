// The slot from which a row's sparsity jumps to a plateau that lasts to its end.
#pragma once

#include "../snr_boundary.h"

namespace seer::cpu {

inline int64_t count_above(const float* s, int64_t begin, int64_t end, double level) {
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) count += static_cast<double>(s[i]) > level ? 1 : 0;
  return count;
}

inline void find_boundary(const SnrBoundaryParams& p, int64_t b) {
  const float* s = p.sparsity + b * p.row_stride;
  const int64_t n = p.length_of(b);
  int64_t best = n;
  double best_snr = 0.0;
  for (int64_t j = p.min_keep; j < n; ++j) {
    const Jump jump = jump_at(p, s, n, j);
    if (!jump.passes || (best < n && !exceeds(jump.snr, best_snr))) continue;
    // Last, as the only check that reads the whole rest of the row.
    if (!is_plateau(p, count_above(s, j, n, jump.level), n - j)) continue;
    best = j;
    best_snr = jump.snr;
  }
  p.boundary[b] = static_cast<int32_t>(best);
  p.snr[b] = static_cast<float>(best_snr);
}

// Rows [begin, end).
inline void snr_boundary(const SnrBoundaryParams& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) find_boundary(p, b);
}

}  // namespace seer::cpu

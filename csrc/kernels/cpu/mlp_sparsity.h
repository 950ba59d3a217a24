// Share of each row's activations below the threshold. Counts are integers, hence exact; NaN is never below.
#pragma once

#include "../mlp_sparsity.h"
#include "../params.h"

namespace seer::cpu {

template <typename T>
SEER_INLINE int64_t count_below(const T* row, int64_t n, float threshold) {
  constexpr int64_t kRun = int64_t{1} << 20;  // 32-bit counters vectorise better, and can't overflow in a run
  int64_t total = 0;
  for (int64_t first = 0; first < n; first += kRun) {
    const T* x = row + first;
    const int32_t length = static_cast<int32_t>(n - first < kRun ? n - first : kRun);
    int32_t count = 0;
    for (int32_t i = 0; i < length; ++i) count += is_below(to_float(x[i]), threshold) ? 1 : 0;
    total += count;
  }
  return total;
}

// Rows [begin, end).
template <typename T>
SEER_INLINE void mlp_sparsity(const MlpSparsityParams& p, int64_t begin, int64_t end) {
  const T* act = static_cast<const T*>(p.act);
  for (int64_t r = begin; r < end; ++r) {
    p.sparsity[r] = share_of(count_below(act + p.act_rows.offset(r), p.I, p.threshold), p.I);
  }
}

}  // namespace seer::cpu

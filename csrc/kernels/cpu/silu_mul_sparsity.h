// act = silu(gate) * up in float32, rounded once, and the share of act below the threshold: one pass over memory.
#pragma once

#include "../math.h"
#include "../params.h"
#include "mlp_sparsity.h"

namespace seer::cpu {

// Rows [begin, end).
template <typename T>
SEER_INLINE void silu_mul_sparsity(const SiluMulSparsityParams& p, int64_t begin, int64_t end) {
  constexpr int64_t kRun = 2048;  // of act, still in the L1 cache when it is counted
  for (int64_t r = begin; r < end; ++r) {
    const T* gate = static_cast<const T*>(p.gate) + p.gate_rows.offset(r);
    const T* up = static_cast<const T*>(p.up) + p.up_rows.offset(r);
    T* __restrict act = static_cast<T*>(p.act) + r * p.I;
    int64_t count = 0;
    for (int64_t first = 0; first < p.I; first += kRun) {
      const int32_t length = static_cast<int32_t>(p.I - first < kRun ? p.I - first : kRun);
      for (int32_t i = 0; i < length; ++i) {
        act[first + i] = from_float<T>(silu(to_float(gate[first + i])) * to_float(up[first + i]));
      }
      count += count_below(act + first, length, p.threshold);
    }
    p.sparsity[r] = share_of(count, p.I);
  }
}

}  // namespace seer::cpu

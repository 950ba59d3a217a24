// act = silu(gate) * up in float32, rounded once, and the share of act below the threshold: one pass over memory.
#pragma once

#include "../math.h"
#include "../params.h"
#include "mlp_sparsity.h"
#include "vec.h"

namespace seer::cpu {

// Rows [begin, end).
template <typename T>
SEER_INLINE void silu_mul_sparsity(const SiluMulSparsityParams& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* gate = static_cast<const T*>(p.gate) + p.gate_rows.offset(r);
    const T* up = static_cast<const T*>(p.up) + p.up_rows.offset(r);
    T* act = static_cast<T*>(p.act) + r * p.I;
    SignedOf<OneVector> below = {};  // minus the count of each lane: a true comparison is -1
    int64_t i = 0;
    for (; i + kFloats <= p.I; i += kFloats) {
      const Floats gated = silu(load_unordered(gate + i));  // before `up` takes registers
      const Floats rounded = store_unordered(act + i, gated * load_unordered(up + i));
      below = below + sum_of_vectors(absolute(rounded) < p.threshold);
    }
    const int64_t tail = i;
    for (; i < p.I; ++i) act[i] = from_float<T>(silu(to_float(gate[i])) * to_float(up[i]));
    p.sparsity[r] = share_of(count_below(act + tail, p.I - tail, p.threshold) - sum_of(below), p.I);
  }
}

}  // namespace seer::cpu

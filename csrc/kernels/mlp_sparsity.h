// What counts as quiet, and the share of it: one source for every backend.
#pragma once

#include <cmath>

#include "types.h"

namespace seer {

// NaN is never below.
SEER_INLINE bool is_below(float activation, float threshold) { return fabsf(activation) < threshold; }

// Divided in double and rounded once: the correctly rounded share.
SEER_INLINE float share_of(int64_t count, int64_t total) {
  return total == 0 ? 0.0f : static_cast<float>(static_cast<double>(count) / static_cast<double>(total));
}

}  // namespace seer

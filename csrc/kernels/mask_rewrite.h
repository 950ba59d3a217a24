// What an entry of an attention mask says, one source for every backend.
#pragma once

#include "params.h"

namespace seer {

struct BooleanMask {
  using Element = uint8_t;
  SEER_INLINE static Element shown() { return 1; }
  SEER_INLINE static Element hidden() { return 0; }
  SEER_INLINE static bool visible(Element x) { return x != 0; }
};

template <typename T>
struct AdditiveMask {
  using Element = T;
  SEER_INLINE static Element shown() { return from_float<T>(0.0f); }
  SEER_INLINE static Element hidden() { return lowest<T>(); }
  SEER_INLINE static bool visible(Element x) { return to_float(x) > to_float(lowest<T>()); }  // NaN and -inf aren't
};

}  // namespace seer

// Counter-based random numbers: noise is a pure function of (key, vocab id), so it depends neither on the batch, nor on
// the order of evaluation, nor on the backend. The hash is the finalizer of splitmix64, applied twice.
#pragma once

#include <cstdint>

#include "math.h"

namespace seer {

// Noise from a 23-bit uniform cannot exceed -log(-log(1 - 2^-24)) = 16.64; this bounds it with room for rounding.
constexpr float kGumbelMax = 16.7f;

SEER_INLINE uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// `stream` is mix64(key). Adding 0.5 keeps u off 0 and 1; 24 significant bits make it exact in float.
SEER_INLINE float counter_uniform(uint64_t stream, int64_t index) {
  const uint64_t hash = mix64(stream + (static_cast<uint64_t>(index) + 1) * 0x9E3779B97F4A7C15ull);
  return (static_cast<float>(static_cast<int32_t>(hash >> 41)) + 0.5f) * 0x1p-23f;
}

SEER_INLINE float counter_gumbel(uint64_t stream, int64_t index) {
  return -log_positive(-log_positive(counter_uniform(stream, index)));
}

}  // namespace seer

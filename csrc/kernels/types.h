// Element types and small views, shared by kernels of every backend. Nothing here knows of tensors.
// Everything is forced inline: files compiled for different instruction sets use it, and an out-of-line copy made for
// one of them could be linked into the others.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SEER_HOST_DEVICE __host__ __device__
#define SEER_INLINE SEER_HOST_DEVICE __forceinline__
#else
#define SEER_HOST_DEVICE
#define SEER_INLINE inline __attribute__((always_inline))
#endif

namespace seer {

enum class DType : int32_t { kFloat32, kBFloat16, kFloat16 };

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

template <typename To, typename From>
SEER_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

SEER_INLINE float to_float(float x) { return x; }

SEER_INLINE float to_float(BFloat16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// By integers and one exact subtraction, so that no denormal operand is met, nor flushed.
SEER_INLINE float to_float(Float16 x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  uint32_t bits = (magnitude << 13) + (112u << 23);                                      // exponent bias 15 -> 127
  bits += magnitude >= 0x7c00u ? 112u << 23 : 0u;                                        // inf and NaN: exponent 255
  const float small = bit_cast<float>(bits + (1u << 23)) - bit_cast<float>(113u << 23);  // denormals: m * 2^-24
  bits = magnitude < 0x0400u ? bit_cast<uint32_t>(small) : bits;
  return bit_cast<float>(bits | (static_cast<uint32_t>(x.bits & 0x8000u) << 16));
}

template <typename T>
SEER_INLINE T from_float(float x);

template <>
SEER_INLINE float from_float<float>(float x) {
  return x;
}

// Round to nearest even; the carry of the rounding turns what is too large into infinity.
template <>
SEER_INLINE BFloat16 from_float<BFloat16>(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(nan ? 0x7fc0u : rounded)};
}

// Round to nearest even.
template <>
SEER_INLINE Float16 from_float<Float16>(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the unit is 2^-24, which is the last place of a float in [0.5, 1): adding 0.5 rounds there.
  const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  half = magnitude < (113u << 23) ? small : half;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above
  half = magnitude > 0x7f800000u ? 0x7e00u : half;   // NaN
  return {static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u))};
}

// int32 or int64 values at any stride. Not for inner loops.
struct IndexArray {
  const void* data;
  int64_t stride;  // elements
  bool wide;       // int64

  SEER_INLINE int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i * stride] : static_cast<const int32_t*>(data)[i * stride];
  }
};

// Where the rows of a tensor `[..., n]` start: its outer dims, merged where their strides allow.
constexpr int kMaxRowDims = 6;

struct RowLayout {
  int64_t sizes[kMaxRowDims];    // sizes[0] isn't read: it is implied by the row number
  int64_t strides[kMaxRowDims];  // elements
  int32_t num_dims;              // at least 1

  SEER_INLINE int64_t offset(int64_t row) const {
    int64_t offset = 0;
    for (int d = num_dims - 1; d > 0; --d) {
      const int64_t rest = row / sizes[d];
      offset += (row - rest * sizes[d]) * strides[d];
      row = rest;
    }
    return offset + row * strides[0];
  }
};

}  // namespace seer

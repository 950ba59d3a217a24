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

// What follows is written once for a number and for a vector of them (cpu/vec.h), of which F names the type.
template <typename F>
struct Integers;

template <>
struct Integers<float> {
  using Signed = int32_t;
  using Unsigned = uint32_t;
};

template <>
struct Integers<double> {
  using Signed = int64_t;
  using Unsigned = uint64_t;
};

template <typename F>
using SignedOf = typename Integers<F>::Signed;

template <typename F>
using UnsignedOf = typename Integers<F>::Unsigned;

template <typename V, typename S>
SEER_INLINE V splat(S value) {
  return V{} + value;
}

template <typename Mask, typename V>
SEER_INLINE V select(Mask mask, V yes, V no) {
  return mask ? yes : no;
}

// b where one is NaN: the processor's own maximum.
template <typename V>
SEER_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

template <typename F>
SEER_INLINE F absolute(F x) {
  return bit_cast<F>(bit_cast<UnsignedOf<F>>(x) & 0x7fffffffu);
}

// The bits of bfloat16 or float16 stand in the low half of 32.

template <typename F>
SEER_INLINE F bfloat16_to_float(UnsignedOf<F> bits) {
  return bit_cast<F>(bits << 16);
}

// By integers and one exact subtraction, so that no denormal operand is met, nor flushed.
template <typename F>
SEER_INLINE F float16_to_float(UnsignedOf<F> half) {
  using U = UnsignedOf<F>;
  const U magnitude = half & 0x7fffu;
  U bits = (magnitude << 13) + (112u << 23);                                       // exponent bias 15 -> 127
  bits = bits + select(magnitude >= 0x7c00u, splat<U>(112u << 23), splat<U>(0u));  // inf and NaN: exponent 255
  const F small = bit_cast<F>(bits + (1u << 23)) - bit_cast<float>(113u << 23);    // denormals: m * 2^-24
  bits = select(magnitude < 0x0400u, bit_cast<U>(small), bits);
  return bit_cast<F>(bits | ((half & 0x8000u) << 16));
}

// Round to nearest even; the carry of the rounding turns what is too large into infinity.
template <typename F>
SEER_INLINE UnsignedOf<F> float_to_bfloat16(F x) {
  using U = UnsignedOf<F>;
  const U bits = bit_cast<U>(x);
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return select(x == x, rounded, splat<U>(0x7fc0u));
}

// Round to nearest even.
template <typename F>
SEER_INLINE UnsignedOf<F> float_to_float16(F x) {
  using U = UnsignedOf<F>;
  const U bits = bit_cast<U>(x);
  const U magnitude = bits & 0x7fffffffu;
  U half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the unit is 2^-24, which is the last place of a float in [0.5, 1): adding 0.5 rounds there.
  const U small = bit_cast<U>(bit_cast<F>(magnitude) + 0.5f) - 0x3f000000u;
  half = select(magnitude < (113u << 23), small, half);
  half = select(magnitude >= 0x477ff000u, splat<U>(0x7c00u), half);  // 65520 and above
  half = select(magnitude > 0x7f800000u, splat<U>(0x7e00u), half);   // NaN
  return half | ((bits >> 16) & 0x8000u);
}

SEER_INLINE float to_float(float x) { return x; }

SEER_INLINE float to_float(BFloat16 x) { return bfloat16_to_float<float>(x.bits); }

SEER_INLINE float to_float(Float16 x) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
#else
  return float16_to_float<float>(x.bits);
#endif
}

template <typename T>
SEER_INLINE T from_float(float x);

template <>
SEER_INLINE float from_float<float>(float x) {
  return x;
}

template <>
SEER_INLINE BFloat16 from_float<BFloat16>(float x) {
  return {static_cast<uint16_t>(float_to_bfloat16(x))};
}

template <>
SEER_INLINE Float16 from_float<Float16>(float x) {
#if defined(__CUDA_ARCH__)
  uint16_t rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
  const uint32_t sign = (bit_cast<uint32_t>(x) >> 16) & 0x8000u;
  return {static_cast<uint16_t>(x == x ? rounded : sign | 0x7e00u)};  // NaN as elsewhere
#else
  return {static_cast<uint16_t>(float_to_float16(x))};
#endif
}

// The most negative finite value.
template <typename T>
SEER_INLINE T lowest();

template <>
SEER_INLINE float lowest<float>() {
  return -0x1.fffffep127f;
}

template <>
SEER_INLINE BFloat16 lowest<BFloat16>() {
  return {0xff7f};
}

template <>
SEER_INLINE Float16 lowest<Float16>() {
  return {0xfbff};
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

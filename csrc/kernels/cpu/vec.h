// Packs of vectors as wide as the registers of the level that a file is compiled for, by the vector extensions of GCC
// and Clang. Each operation is one IEEE operation per lane: any width gives the bits of a scalar loop. A pack holds
// several vectors, whose operations stand side by side: a polynomial is one long chain, and the processor looks ahead
// too little to overlap the chains of separate vectors by itself.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "../math.h"
#include "../types.h"

namespace seer::cpu {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kVectors = 8;  // of floats in a pack
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kVectors = 4;
#else
constexpr int kVectorBytes = 16;
constexpr int kVectors = 4;
#endif

template <typename T, int N>
struct Pack {
  typedef T Part __attribute__((vector_size(kVectorBytes)));
  static constexpr int kPartLanes = kVectorBytes / sizeof(T);
  static constexpr int kLanes = N * kPartLanes;

  Part part[N];

  SEER_INLINE T lane(int i) const { return part[i / kPartLanes][i % kPartLanes]; }
};

// Of as many bytes, for masks: a true lane is -1.
template <typename T>
using MaskOf = typename Integers<T>::Signed;

#define SEER_PACK_OPERATOR(op, Result)                                                \
  template <typename T, int N>                                                        \
  SEER_INLINE Pack<Result, N> operator op(const Pack<T, N>& a, const Pack<T, N>& b) { \
    Pack<Result, N> r;                                                                \
    for (int i = 0; i < N; ++i) r.part[i] = a.part[i] op b.part[i];                   \
    return r;                                                                         \
  }                                                                                   \
  template <typename T, int N, typename S>                                            \
  SEER_INLINE Pack<Result, N> operator op(const Pack<T, N>& a, S b) {                 \
    Pack<Result, N> r;                                                                \
    for (int i = 0; i < N; ++i) r.part[i] = a.part[i] op static_cast<T>(b);           \
    return r;                                                                         \
  }

SEER_PACK_OPERATOR(+, T)
SEER_PACK_OPERATOR(-, T)
SEER_PACK_OPERATOR(*, T)
SEER_PACK_OPERATOR(/, T)
SEER_PACK_OPERATOR(&, T)
SEER_PACK_OPERATOR(|, T)
SEER_PACK_OPERATOR(<<, T)
SEER_PACK_OPERATOR(>>, T)
SEER_PACK_OPERATOR(<, MaskOf<T>)
SEER_PACK_OPERATOR(>, MaskOf<T>)
SEER_PACK_OPERATOR(>=, MaskOf<T>)
SEER_PACK_OPERATOR(==, MaskOf<T>)
#undef SEER_PACK_OPERATOR

template <typename T, int N>
SEER_INLINE Pack<T, N> operator-(const Pack<T, N>& a) {
  Pack<T, N> r;
  for (int i = 0; i < N; ++i) r.part[i] = -a.part[i];
  return r;
}

template <typename M, typename T, int N>
SEER_INLINE Pack<T, N> select(const Pack<M, N>& mask, const Pack<T, N>& yes, const Pack<T, N>& no) {
  Pack<T, N> r;
  for (int i = 0; i < N; ++i) r.part[i] = mask.part[i] ? yes.part[i] : no.part[i];
  return r;
}

#if defined(__SSE2__)
SEER_INLINE void maximum(const __m128& a, const __m128& b, __m128& r) { r = _mm_max_ps(a, b); }
SEER_INLINE void maximum(const __m128d& a, const __m128d& b, __m128d& r) { r = _mm_max_pd(a, b); }
#endif
#if defined(__AVX2__)
SEER_INLINE void maximum(const __m256& a, const __m256& b, __m256& r) { r = _mm256_max_ps(a, b); }
SEER_INLINE void maximum(const __m256d& a, const __m256d& b, __m256d& r) { r = _mm256_max_pd(a, b); }
#endif
#if defined(__AVX512F__)
SEER_INLINE void maximum(const __m512& a, const __m512& b, __m512& r) { r = _mm512_max_ps(a, b); }
SEER_INLINE void maximum(const __m512d& a, const __m512d& b, __m512d& r) { r = _mm512_max_pd(a, b); }
#endif

template <typename T, int N>
SEER_INLINE Pack<T, N> larger(const Pack<T, N>& a, const Pack<T, N>& b) {
  Pack<T, N> r;
#if defined(__SSE2__)
  for (int i = 0; i < N; ++i) maximum(a.part[i], b.part[i], r.part[i]);
#else
  for (int i = 0; i < N; ++i) r.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
#endif
  return r;
}

template <typename To, typename T, int N>
SEER_INLINE To bit_cast(const Pack<T, N>& from) {
  To to;
  for (int i = 0; i < N; ++i) to.part[i] = (typename To::Part)from.part[i];
  return to;
}

}  // namespace seer::cpu

namespace seer {

template <int N>
struct Integers<cpu::Pack<float, N>> {
  using Signed = cpu::Pack<int32_t, N>;
  using Unsigned = cpu::Pack<uint32_t, N>;
};

template <int N>
struct Integers<cpu::Pack<double, N>> {
  using Signed = cpu::Pack<int64_t, N>;
  using Unsigned = cpu::Pack<uint64_t, N>;
};

template <>
struct Integers<int32_t> : Integers<float> {};
template <>
struct Integers<uint32_t> : Integers<float> {};

}  // namespace seer

namespace seer::cpu {

using Floats = Pack<float, kVectors>;
constexpr int kFloats = Floats::kLanes;

template <typename T, int N>
SEER_INLINE Pack<T, N> load(const T* from) {
  Pack<T, N> r;
  for (int i = 0; i < N; ++i) memcpy(&r.part[i], from + i * Pack<T, N>::kPartLanes, kVectorBytes);
  return r;
}

template <typename T, int N>
SEER_INLINE void store(T* to, const Pack<T, N>& v) {
  for (int i = 0; i < N; ++i) memcpy(to + i * Pack<T, N>::kPartLanes, &v.part[i], kVectorBytes);
}

// As many numbers of half the width, in memory.
typedef uint16_t HalfPart __attribute__((vector_size(kVectorBytes / 2)));

SEER_INLINE UnsignedOf<Floats> load_halves(const void* from) {
  UnsignedOf<Floats> r;
  for (int i = 0; i < kVectors; ++i) {
    HalfPart part;
    memcpy(&part, static_cast<const char*>(from) + i * sizeof(part), sizeof(part));
#if defined(__AVX512F__)
    r.part[i] = (UnsignedOf<Floats>::Part)_mm512_cvtepu16_epi32((__m256i)part);
#elif defined(__AVX2__)
    r.part[i] = (UnsignedOf<Floats>::Part)_mm256_cvtepu16_epi32((__m128i)part);
#else
    r.part[i] = __builtin_convertvector(part, UnsignedOf<Floats>::Part);
#endif
  }
  return r;
}

SEER_INLINE void store_halves(void* to, const UnsignedOf<Floats>& v) {
  for (int i = 0; i < kVectors; ++i) {
#if defined(__AVX512F__)
    const HalfPart part = (HalfPart)_mm512_cvtepi32_epi16((__m512i)v.part[i]);
#else
    const HalfPart part = __builtin_convertvector(v.part[i], HalfPart);
#endif
    memcpy(static_cast<char*>(to) + i * sizeof(part), &part, sizeof(part));
  }
}

// kFloats elements, widened as to_float does.
SEER_INLINE Floats load_floats(const float* from) { return load<float, kVectors>(from); }
SEER_INLINE Floats load_floats(const BFloat16* from) { return bfloat16_to_float<Floats>(load_halves(from)); }
SEER_INLINE Floats load_floats(const Float16* from) { return float16_to_float<Floats>(load_halves(from)); }

// Stores kFloats elements, rounded as from_float does, and returns what they are now.
SEER_INLINE Floats store_floats(float* to, const Floats& v) {
  store(to, v);
  return v;
}

SEER_INLINE Floats store_floats(BFloat16* to, const Floats& v) {
  const UnsignedOf<Floats> bits = float_to_bfloat16(v);
  store_halves(to, bits);
  return bfloat16_to_float<Floats>(bits);
}

SEER_INLINE Floats store_floats(Float16* to, const Floats& v) {
  const UnsignedOf<Floats> bits = float_to_float16(v);
  store_halves(to, bits);
  return float16_to_float<Floats>(bits);
}

SEER_INLINE float largest(const Floats& v) {
  Pack<float, 1> max = {{v.part[0]}};
  for (int i = 1; i < kVectors; ++i) max = larger(Pack<float, 1>{{v.part[i]}}, max);
  float result = max.lane(0);
  for (int i = 1; i < max.kLanes; ++i) result = seer::larger(max.lane(i), result);
  return result;
}

SEER_INLINE int32_t sum_of(const SignedOf<Floats>& v) {
  Pack<int32_t, 1> sum = {{v.part[0]}};
  for (int i = 1; i < kVectors; ++i) sum = sum + Pack<int32_t, 1>{{v.part[i]}};
  int32_t result = 0;
  for (int i = 0; i < sum.kLanes; ++i) result += sum.lane(i);
  return result;
}

}  // namespace seer::cpu

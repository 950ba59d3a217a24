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
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kVectors = 8;  // of a pack: enough for its longest chains, though some values leave the registers

template <typename T, int N>
struct Pack {
  typedef T Part __attribute__((vector_size(kVectorBytes)));
  // At any address. A memcpy may become several narrower moves, which the load of the whole then waits for.
  struct __attribute__((packed, may_alias)) Memory {
    Part part;
  };
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
  const auto* parts = reinterpret_cast<const typename Pack<T, N>::Memory*>(from);
  for (int i = 0; i < N; ++i) r.part[i] = parts[i].part;
  return r;
}

template <typename T, int N>
SEER_INLINE void store(T* to, const Pack<T, N>& v) {
  auto* parts = reinterpret_cast<typename Pack<T, N>::Memory*>(to);
  for (int i = 0; i < N; ++i) parts[i].part = v.part[i];
}

// As many numbers of half the width, in memory.
typedef uint16_t HalfPart __attribute__((vector_size(kVectorBytes / 2)));
struct __attribute__((packed, may_alias)) HalfMemory {
  HalfPart part;
};

SEER_INLINE UnsignedOf<Floats> load_halves(const void* from) {
  UnsignedOf<Floats> r;
  for (int i = 0; i < kVectors; ++i) {
    const HalfPart part = static_cast<const HalfMemory*>(from)[i].part;
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

// kFloats elements, widened as to_float does.
SEER_INLINE Floats load_floats(const float* from) { return load<float, kVectors>(from); }
SEER_INLINE Floats load_floats(const BFloat16* from) { return bfloat16_to_float<Floats>(load_halves(from)); }
SEER_INLINE Floats load_floats(const Float16* from) { return float16_to_float<Floats>(load_halves(from)); }

// ---- for loops to which the order of a pack's lanes is all the same ----

using OneVector = Pack<float, 1>;
using Bits = UnsignedOf<OneVector>;

template <typename Half>
SEER_INLINE OneVector widened(const Bits& bits);

template <>
SEER_INLINE OneVector widened<BFloat16>(const Bits& bits) {
  return bfloat16_to_float<OneVector>(bits);
}

template <>
SEER_INLINE OneVector widened<Float16>(const Bits& bits) {
  return float16_to_float<OneVector>(bits);
}

template <typename Half>
SEER_INLINE Bits narrowed(const OneVector& v);

template <>
SEER_INLINE Bits narrowed<BFloat16>(const OneVector& v) {
  return float_to_bfloat16(v);
}

template <>
SEER_INLINE Bits narrowed<Float16>(const OneVector& v) {
  return float_to_float16(v);
}

SEER_INLINE Floats load_unordered(const float* from) { return load_floats(from); }

// As pairs in 32 bits, which masks and shifts take apart; in their order they would take shuffles.
template <typename Half>
SEER_INLINE Floats load_unordered(const Half* from) {
  const auto pairs = load<uint32_t, kVectors / 2>(reinterpret_cast<const uint32_t*>(from));
  Floats r;
  for (int i = 0; i < kVectors / 2; ++i) {
    r.part[2 * i] = widened<Half>(Bits{{pairs.part[i] & 0xffffu}}).part[0];
    r.part[2 * i + 1] = widened<Half>(Bits{{pairs.part[i] >> 16}}).part[0];
  }
  return r;
}

// Stores kFloats elements that were loaded so, rounded as from_float does, and returns what they are now.
SEER_INLINE Floats store_unordered(float* to, const Floats& v) {
  store(to, v);
  return v;
}

// Vector by vector: rounding is a short chain, of more values than the registers hold for all vectors at once.
template <typename Half>
SEER_INLINE Floats store_unordered(Half* to, const Floats& v) {
  Pack<uint32_t, kVectors / 2> pairs;
  Floats r;
  for (int i = 0; i < kVectors / 2; ++i) {
    const Bits low = narrowed<Half>(OneVector{{v.part[2 * i]}}), high = narrowed<Half>(OneVector{{v.part[2 * i + 1]}});
    pairs.part[i] = (low | high << 16).part[0];
    r.part[2 * i] = widened<Half>(low).part[0];
    r.part[2 * i + 1] = widened<Half>(high).part[0];
  }
  store(reinterpret_cast<uint32_t*>(to), pairs);
  return r;
}

// ---- over the lanes ----

SEER_INLINE float largest(const Floats& v) {
  OneVector max = {{v.part[0]}};
  for (int i = 1; i < kVectors; ++i) max = larger(OneVector{{v.part[i]}}, max);
  float result = max.lane(0);
  for (int i = 1; i < max.kLanes; ++i) result = seer::larger(max.lane(i), result);
  return result;
}

SEER_INLINE SignedOf<OneVector> sum_of_vectors(const SignedOf<Floats>& v) {
  SignedOf<OneVector> sum = {{v.part[0]}};
  for (int i = 1; i < kVectors; ++i) sum = sum + SignedOf<OneVector>{{v.part[i]}};
  return sum;
}

SEER_INLINE int32_t sum_of(const SignedOf<OneVector>& v) {
  int32_t sum = 0;
  for (int i = 0; i < v.kLanes; ++i) sum += v.lane(i);
  return sum;
}

}  // namespace seer::cpu

// The elementary functions of all kernels, CPU and CUDA: one source, so that every backend and instruction set gives
// the same bits. Built from single IEEE operations: compile with contraction off (a fused multiply-add rounds once, not
// twice). F is float, or double where a name says so, or a vector of them.
#pragma once

#include <cmath>
#include <cstdint>

#include "types.h"

namespace seer {

// exp(x) for x <= 0 within 1.1 ulp, down through the denormals to 0. Of NaN nothing is promised.
// x = n ln2 + r with n a whole number and |r| <= ln2/2; exp(r) by a polynomial (fitted to 5e-11 of relative error)
// whose parts don't wait for each other, 2^n by adding to the exponent.
template <typename F>
SEER_INLINE F exp_nonpositive(F x) {
  constexpr float kShift = 12582976.0f;  // 1.5 * 2^23 + 64: a sum's last bits hold its other part, rounded, + 64
  x = larger(splat<F>(-104.0f), x);      // exp(-104) rounds to 0; further out n leaves the range of an exponent
  const F shifted = x * 1.44269504f + kShift;
  const F n = shifted - kShift;
  F r = x - n * 0.693359375f;  // ln2 in two parts, the first short enough for n times it to be exact
  r = r + n * 2.12194440e-4f;
  const F r2 = r * r;
  const F high = (r * 1.979013614e-4f + 1.394486870e-3f) * r2 + (r * 8.333498612e-3f + 4.166629165e-2f);
  const F p = (high * r2 + (r * 1.666666567e-1f + 0.5f)) * r2 + r + 1.0f;
  // 2^(n + 64) times p is a normal number, and exact; 2^-64 rounds once where the result is denormal.
  return bit_cast<F>(bit_cast<UnsignedOf<F>>(p) + (bit_cast<UnsignedOf<F>>(shifted) << 23)) * 0x1p-64f;
}

// x * sigmoid(x). exp only ever sees -|x|, so nothing overflows: silu(+-1e30) is 1e30 and -0, silu(inf) inf, and
// silu(-inf) NaN, as in PyTorch.
template <typename F>
SEER_INLINE F silu(F x) {
  const F z = exp_nonpositive(-absolute(x));
  return select(x < 0.0f, x * z, x) / (z + 1.0f);
}

// Natural log of a positive, normal, finite x, within 2e-7 relative, next to 1 as well. x = 2^e * m with m in
// [sqrt(1/2), sqrt(2)); log(m) = 2 atanh(s) with s = (m-1)/(m+1), whose series needs five terms at |s| < 0.172.
SEER_INLINE float log_positive(float x) {
  const uint32_t offset = bit_cast<uint32_t>(x) - 0x3f3504f3u;  // from sqrt(1/2)
  const float e = static_cast<float>(static_cast<int32_t>(offset) >> 23);
  const float f = bit_cast<float>((offset & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s;
  const float series = z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9))));
  // ln2 in two parts, as above; the small terms are added up first
  return e * 0.693359375f + (2.0f * s + (2.0f * s * series + e * -2.12194440e-4f));
}

// exp(x) for x <= 0 in double, within 5e-16 relative; exactly 1 at 0, exactly 0 below -708 (no denormal arises) and for
// NaN. As the float version, with a polynomial that is fitted to 2e-17. Out of range it has no meaning, and is dropped.
template <typename F>
SEER_INLINE F exp_nonpositive_double(F x) {
  using Bits = UnsignedOf<F>;
  const auto in_range = x >= -708.0;
  const F shifted = x * 1.4426950408889634 + 0x1.8p52;
  const F n = shifted - 0x1.8p52;
  const F r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  const F r2 = r * r;
  F odd = r2 * 2.5100424157005067e-8 + 2.7557268378684192e-6;
  F even = r2 * 2.7620138719733994e-7 + 2.480152119021773e-5;
  odd = odd * r2 + 1.9841269863105968e-4;
  even = even * r2 + 1.3888888917281794e-3;
  odd = odd * r2 + 8.333333333330051e-3;
  even = even * r2 + 4.166666666662399e-2;
  odd = odd * r2 + 0.16666666666666669;
  even = even * r2 + 0.5000000000000001;
  F p = (odd * r + even) * r2 + r + 1.0;
  p = bit_cast<F>(bit_cast<Bits>(p) + (bit_cast<Bits>(shifted) << 52));  // the low bits of `shifted` hold n
  return select(in_range, p, splat<F>(0.0));
}

// log(1 + x) for x >= 0 in double, within 4e-16 relative. The log of u = 1 + x, as the float version's, and to first
// order of what u has rounded away.
SEER_INLINE double log1p_nonnegative_double(double x) {
  const double u = 1.0 + x;
  const uint64_t offset = bit_cast<uint64_t>(u) - 0x3fe6a09e667f3bcdull;  // from sqrt(1/2)
  const double e = static_cast<double>(static_cast<int64_t>(offset) >> 52);
  const double f = bit_cast<double>((offset & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double series = 1.0 / 23;
  series = series * z + 1.0 / 21;
  series = series * z + 1.0 / 19;
  series = series * z + 1.0 / 17;
  series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13;
  series = series * z + 1.0 / 11;
  series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7;
  series = series * z + 1.0 / 5;
  series = series * z + 1.0 / 3;
  const double rounded_away = (x - (u - 1.0)) / u;
  const double low = e * 1.90821492927058770002e-10 + rounded_away;
  return e * 6.93147180369123816490e-01 + (2.0 * s + (2.0 * s * z * series + low));
}

}  // namespace seer

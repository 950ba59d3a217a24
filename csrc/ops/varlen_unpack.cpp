#include "varlen_unpack.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "outputs.h"
#include "token_ranges.h"

namespace seer {
namespace {

constexpr const char* op = "varlen_unpack";

template <typename T>
uint64_t low_bytes(T value) {
  uint64_t bytes = 0;
  memcpy(&bytes, &value, sizeof(value));
  return bytes;
}

template <typename T>
uint64_t integer_fill(double fill, ScalarType dtype) {
  using Limits = std::numeric_limits<T>;
  const bool whole = fill == std::trunc(fill) && fill >= static_cast<double>(Limits::lowest()) &&
                     fill < std::ldexp(1.0, Limits::digits);  // the largest int64 itself is no double
  SEER_CHECK(whole, op, "fill", text("be a value of ", dtype_name(dtype)), fill);
  return low_bytes(static_cast<T>(fill));
}

template <typename T>
uint64_t float_fill(double fill, ScalarType dtype) {
  const T value = from_float<T>(static_cast<float>(fill));
  SEER_CHECK(!std::isfinite(fill) || std::isfinite(to_float(value)), op, "fill",
             text("lie in the range of ", dtype_name(dtype)), fill);
  return low_bytes(value);
}

// One element of the value `fill`; the imaginary part of a complex one is 0.
uint64_t fill_bytes(double fill, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Double: return low_bytes(fill);
    case ScalarType::Float:
    case ScalarType::ComplexFloat: return float_fill<float>(fill, dtype);
    case ScalarType::BFloat16: return float_fill<BFloat16>(fill, dtype);
    case ScalarType::Half:
    case ScalarType::ComplexHalf: return float_fill<Float16>(fill, dtype);
    case ScalarType::Bool: return integer_fill<bool>(fill, dtype);
    case ScalarType::Byte: return integer_fill<uint8_t>(fill, dtype);
    case ScalarType::Char: return integer_fill<int8_t>(fill, dtype);
    case ScalarType::Short: return integer_fill<int16_t>(fill, dtype);
    case ScalarType::Int: return integer_fill<int32_t>(fill, dtype);
    case ScalarType::Long: return integer_fill<int64_t>(fill, dtype);
    case ScalarType::UInt16: return integer_fill<uint16_t>(fill, dtype);
    case ScalarType::UInt32: return integer_fill<uint32_t>(fill, dtype);
    case ScalarType::UInt64: return integer_fill<uint64_t>(fill, dtype);
    default: SEER_CHECK(fill == 0.0, op, "fill", text("be 0 for ", dtype_name(dtype)), fill); return 0;
  }
}

}  // namespace

VarlenUnpackParams make_varlen_unpack_params(const Tensor& packed, const Tensor& columns, const Tensor& cu_seqlens,
                                             int64_t length, double fill) {
  check_min_rank(op, "packed", packed, 1, "[T, ...]");
  check_rank(op, "columns", columns, 1, "[B]");
  VarlenUnpackParams p{};
  p.T = packed.size(0);
  p.B = columns.size(0);
  p.length = length;
  p.packed = check_tokens(op, "packed", packed);
  p.columns = check_index(op, "columns", columns, p.B, "[B]", packed, "packed");
  p.cu_seqlens = check_index(op, "cu_seqlens", cu_seqlens, p.B + 1, "[B+1]", packed, "packed");
  check_size(op, "length", length, p.B * std::max<int64_t>(1, p.packed.token_bytes()));
  p.fill = fill_bytes(fill, packed.scalar_type());
  return p;
}

void check_varlen_unpack_values(const VarlenUnpackParams& p) {
  check_offsets(op, "cu_seqlens", p.cu_seqlens, p.B);
  SEER_CHECK(p.cu_seqlens[p.B] <= p.T, op, "cu_seqlens", text("end at or before T=", p.T), p.cu_seqlens[p.B]);
  for (int64_t b = 0; b < p.B; ++b) {
    check_range(op, "columns", p.columns, b, p.cu_seqlens[b + 1] - p.cu_seqlens[b], p.length, "length");
  }
}

Tensor make_varlen_unpack_outputs(VarlenUnpackParams& p, const Tensor& packed) {
  const auto packed_sizes = packed.sizes();
  std::vector<int64_t> sizes = {p.B, p.length};
  sizes.insert(sizes.end(), packed_sizes.begin() + 1, packed_sizes.end());
  Tensor out = new_output(packed, sizes, packed.scalar_type());
  p.out = out.mutable_data_ptr();
  return out;
}

}  // namespace seer

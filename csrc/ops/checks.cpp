#include "checks.h"

#include <algorithm>

namespace seer {
namespace {

std::string list_text(torch::headeronly::IntHeaderOnlyArrayRef values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

}  // namespace

std::string dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Bool: return "bool";
    case ScalarType::ComplexHalf: return "complex32";
    case ScalarType::ComplexFloat: return "complex64";
    case ScalarType::ComplexDouble: return "complex128";
    default: {  // the rest differs from PyTorch's spelling in capitals alone
      std::string name = torch::headeronly::toString(dtype);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      return name;
    }
  }
}

std::string dtype_names(std::initializer_list<ScalarType> dtypes) {
  std::string out;
  size_t i = 0;
  for (const ScalarType dtype : dtypes) {
    if (i > 0) out += i + 1 == dtypes.size() ? " or " : ", ";
    out += dtype_name(dtype);
    ++i;
  }
  return out;
}

std::string device_name(const Tensor& t) {
  if (t.is_cpu()) return "cpu";
  if (t.is_cuda()) return text("cuda:", t.get_device_index());
  return text("device type ", static_cast<int>(t.device().type()));
}

std::string shape_text(const Tensor& t) { return list_text(t.sizes()); }

std::string strides_text(const Tensor& t) { return list_text(t.strides()); }

void check_tensor(const char* op, const char* argument, const Tensor& t) {
  SEER_CHECK(t.defined(), op, argument, "be a Tensor", "None");
}

void check_rank(const char* op, const char* argument, const Tensor& t, int64_t rank, const char* shape) {
  check_tensor(op, argument, t);
  SEER_CHECK(t.dim() == rank, op, argument, text("have shape ", shape), shape_text(t));
}

void check_min_rank(const char* op, const char* argument, const Tensor& t, int64_t rank, const char* shape) {
  check_tensor(op, argument, t);
  SEER_CHECK(t.dim() >= rank, op, argument, text("have shape ", shape), shape_text(t));
}

void check_shape(const char* op, const char* argument, const Tensor& t, std::initializer_list<int64_t> sizes,
                 const char* shape) {
  const torch::headeronly::IntHeaderOnlyArrayRef want(sizes.begin(), sizes.size());
  const bool same =
      t.dim() == static_cast<int64_t>(sizes.size()) && std::equal(sizes.begin(), sizes.end(), t.sizes().begin());
  SEER_CHECK(same, op, argument, text("have shape ", shape, "=", list_text(want)), shape_text(t));
}

void check_same_shape(const char* op, const char* argument, const Tensor& t, const Tensor& like,
                      const char* like_name) {
  const auto sizes = t.sizes(), want = like.sizes();
  const bool same = sizes.size() == want.size() && std::equal(sizes.begin(), sizes.end(), want.begin());
  SEER_CHECK(same, op, argument, text("have the shape of ", like_name, ", ", shape_text(like)), shape_text(t));
}

void check_same_device(const char* op, const char* argument, const Tensor& t, const Tensor& like,
                       const char* like_name) {
  check_tensor(op, argument, t);
  const bool same = t.device() == like.device();
  SEER_CHECK(same, op, argument, text("be on ", device_name(like), " like ", like_name), device_name(t));
}

void check_dtype(const char* op, const char* argument, const Tensor& t, std::initializer_list<ScalarType> dtypes) {
  const ScalarType dtype = t.scalar_type();
  const bool known = std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
  SEER_CHECK(known, op, argument, text("have dtype ", dtype_names(dtypes)), dtype_name(dtype));
}

void check_same_dtype(const char* op, const char* argument, const Tensor& t, const Tensor& like,
                      const char* like_name) {
  const ScalarType dtype = t.scalar_type(), want = like.scalar_type();
  SEER_CHECK(dtype == want, op, argument, text("have the dtype of ", like_name, ", ", dtype_name(want)),
             dtype_name(dtype));
}

void check_last_contiguous(const char* op, const char* argument, const Tensor& t) {
  const int64_t last = t.dim() - 1;
  const bool dense = last < 0 || t.size(last) <= 1 || t.stride(last) == 1;
  SEER_CHECK(dense, op, argument, "be contiguous in its last dim", text("strides ", strides_text(t)));
}

DType check_float(const char* op, const char* argument, const Tensor& t) {
  check_dtype(op, argument, t, {ScalarType::Float, ScalarType::BFloat16, ScalarType::Half});
  switch (t.scalar_type()) {
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Half: return DType::kFloat16;
    default: return DType::kFloat32;
  }
}

IndexArray check_index(const char* op, const char* argument, const Tensor& t, int64_t size, const char* shape,
                       const Tensor& like, const char* like_name) {
  check_rank(op, argument, t, 1, text(shape, "=[", size, "]").c_str());
  check_same_device(op, argument, t, like, like_name);
  check_dtype(op, argument, t, {ScalarType::Int, ScalarType::Long});
  check_shape(op, argument, t, {size}, shape);
  return {t.const_data_ptr(), t.stride(0), t.scalar_type() == ScalarType::Long};
}

void check_offsets(const char* op, const char* argument, const IndexArray& offsets, int64_t B) {
  SEER_CHECK(offsets[0] == 0, op, argument, "start at 0", offsets[0]);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t begin = offsets[b], end = offsets[b + 1];
    SEER_CHECK(begin <= end, op, argument, "not decrease", text(begin, " before ", end));
  }
}

RowLayout check_rows(const char* op, const char* argument, const Tensor& t) {
  RowLayout rows{};
  rows.num_dims = 0;
  int64_t sizes[kMaxRowDims], strides[kMaxRowDims];  // innermost first
  for (int64_t d = t.dim() - 2; d >= 0; --d) {
    const int64_t size = t.size(d), stride = t.stride(d);
    if (size == 1) continue;
    const int32_t n = rows.num_dims;
    if (n > 0 && stride == strides[n - 1] * sizes[n - 1]) {
      sizes[n - 1] *= size;
      continue;
    }
    SEER_CHECK(n < kMaxRowDims, op, argument, text("have at most ", kMaxRowDims, " outer dims that do not merge"),
               text("shape ", shape_text(t), " with strides ", strides_text(t)));
    sizes[n] = size;
    strides[n] = stride;
    rows.num_dims = n + 1;
  }
  if (rows.num_dims == 0) {  // a single row
    rows.num_dims = 1;
    sizes[0] = 1;
    strides[0] = 0;
  }
  std::reverse_copy(sizes, sizes + rows.num_dims, rows.sizes);
  std::reverse_copy(strides, strides + rows.num_dims, rows.strides);
  return rows;
}

int64_t num_rows(const Tensor& t) {
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < t.dim(); ++d) rows *= t.size(d);
  return rows;
}

}  // namespace seer

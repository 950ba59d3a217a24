// Argument checks. Every message reads `seer::<op>: <argument> must <rule>, got <value>`; texts are built on failure
// only. Order in every make_<op>_params: rank, device, dtype, shape, strides, values.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>

#include "kernels/types.h"

// `rule` and `got` are evaluated only when `ok` is false.
#define SEER_CHECK(ok, op, argument, rule, got)               \
  do {                                                        \
    if (!(ok)) ::seer::fail((op), (argument), (rule), (got)); \
  } while (0)

namespace seer {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <typename Got>
[[noreturn]] void fail(const char* op, const char* argument, const std::string& rule, const Got& got) {
  throw std::runtime_error(text("seer::", op, ": ", argument, " must ", rule, ", got ", got));
}

// In PyTorch's spelling: float32, bfloat16, int64.
std::string dtype_name(ScalarType dtype);
std::string dtype_names(std::initializer_list<ScalarType> dtypes);  // "float32, bfloat16 or float16"
std::string device_name(const Tensor& t);                           // "cpu", "cuda:0"
std::string shape_text(const Tensor& t);                            // "[2, 3]"
std::string strides_text(const Tensor& t);

// None, which reaches an op as a tensor that isn't defined, is refused here and by the next three.
void check_tensor(const char* op, const char* argument, const Tensor& t);
void check_rank(const char* op, const char* argument, const Tensor& t, int64_t rank, const char* shape);
void check_min_rank(const char* op, const char* argument, const Tensor& t, int64_t rank, const char* shape);
// `shape` names the sizes, say "[B+1]".
void check_shape(const char* op, const char* argument, const Tensor& t, std::initializer_list<int64_t> sizes,
                 const char* shape);
void check_same_shape(const char* op, const char* argument, const Tensor& t, const Tensor& like, const char* like_name);
void check_same_device(const char* op, const char* argument, const Tensor& t, const Tensor& like,
                       const char* like_name);
void check_dtype(const char* op, const char* argument, const Tensor& t, std::initializer_list<ScalarType> dtypes);
void check_same_dtype(const char* op, const char* argument, const Tensor& t, const Tensor& like, const char* like_name);
void check_last_contiguous(const char* op, const char* argument, const Tensor& t);

// float32, bfloat16 or float16.
DType check_float(const char* op, const char* argument, const Tensor& t);
// 1-D int32 or int64 of `size` elements on the device of `like`; any stride.
IndexArray check_index(const char* op, const char* argument, const Tensor& t, int64_t size, const char* shape,
                       const Tensor& like, const char* like_name);
// For values that the host can read: the B+1 offsets start at 0 and never decrease.
void check_offsets(const char* op, const char* argument, const IndexArray& offsets, int64_t B);
// The outer dims of a tensor of rank 1 or more.
RowLayout check_rows(const char* op, const char* argument, const Tensor& t);
// Product of the outer sizes.
int64_t num_rows(const Tensor& t);

}  // namespace seer

// Checks shared by the ops on one range of tokens or columns per row.
#pragma once

#include <algorithm>

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// A tensor `[N, ...]` of any dtype of 1, 2, 4 or 8 bytes. Of a 1-D tensor the only dim is that of the tokens.
inline TokenLayout check_tokens(const char* op, const char* argument, const Tensor& t) {
  const size_t size = t.element_size();
  SEER_CHECK(size == 1 || size == 2 || size == 4 || size == 8, op, argument, "have a dtype of 1, 2, 4 or 8 bytes",
             dtype_name(t.scalar_type()));
  TokenLayout x{};
  x.data = t.const_data_ptr();
  x.element_size = static_cast<int32_t>(size);
  if (t.dim() == 1) {
    x.rows.num_dims = 1;
    x.rows.strides[0] = t.stride(0);
    x.run = x.runs = 1;
    return x;
  }
  check_last_contiguous(op, argument, t);
  x.rows = check_rows(op, argument, t);
  x.run = t.size(t.dim() - 1);
  x.runs = 1;
  for (int64_t d = 1; d + 1 < t.dim(); ++d) x.runs *= t.size(d);
  return x;
}

// A number of tokens of the output, of `bytes` each. No address space holds the bound, and below it no product of sizes
// leaves 64 bits.
inline void check_size(const char* op, const char* argument, int64_t size, int64_t bytes,
                       int64_t max = int64_t{1} << 56) {
  max = std::min(max, (int64_t{1} << 56) / std::max<int64_t>(1, bytes));
  SEER_CHECK(size >= 0 && size <= max, op, argument, text("lie in [0, ", max, "]"), size);
}

// For values that the host can read: row b's range of `length` from starts[b] on lies in [0, size]. `length` isn't
// negative.
inline void check_range(const char* op, const char* argument, const IndexArray& starts, int64_t b, int64_t length,
                        int64_t size, const char* size_name) {
  const int64_t start = starts[b];
  SEER_CHECK(start >= 0 && length <= size && start <= size - length, op, argument,
             text("keep row ", b, " in [0, ", size_name, "]=[0, ", size, "]"), text(start, " with length ", length));
}

}  // namespace seer

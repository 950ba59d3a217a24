// Copies tokens to dense memory, and finds which row of a packed batch a stretch of tokens belongs to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../params.h"

namespace seer::cpu {

// Tokens [first, first + count) of `x`.
inline void copy_tokens(const TokenLayout& x, int64_t first, int64_t count, char* to) {
  const char* const data = static_cast<const char*>(x.data);
  const int64_t run_bytes = x.run * x.element_size;
  const int64_t begin = first * x.runs, end = (first + count) * x.runs;
  if (run_bytes == 0 || begin == end) return;
  if (x.rows.num_dims == 1 && x.rows.strides[0] == x.run) {  // one run after the other
    std::memcpy(to, data + begin * run_bytes, (end - begin) * run_bytes);
    return;
  }
  for (int64_t row = begin; row < end; ++row, to += run_bytes) {
    std::memcpy(to, data + x.rows.offset(row) * x.element_size, run_bytes);
  }
}

inline void zero_tokens(const TokenLayout& x, int64_t count, char* to) {
  const int64_t bytes = count * x.token_bytes();
  if (bytes > 0) std::memset(to, 0, bytes);
}

// `element` is one element, its bytes the lowest.
inline void fill_tokens(const TokenLayout& x, uint64_t element, int64_t count, char* to) {
  const int64_t elements = count * x.runs * x.run;
  switch (x.element_size) {
    case 1: std::fill_n(to, elements, static_cast<char>(element)); return;
    case 2: std::fill_n(reinterpret_cast<uint16_t*>(to), elements, static_cast<uint16_t>(element)); return;
    case 4: std::fill_n(reinterpret_cast<uint32_t*>(to), elements, static_cast<uint32_t>(element)); return;
    default: std::fill_n(reinterpret_cast<uint64_t*>(to), elements, element); return;
  }
}

// Calls f(row, from, to) for each row's part of the packed tokens [begin, end), in order, and returns where the last
// part ends. `cu` is any indexable of B+1 offsets.
template <typename Offsets, typename F>
int64_t for_each_segment(const Offsets& cu, int64_t B, int64_t begin, int64_t end, F f) {
  int64_t b = 0, high = B;  // to the first row that ends after `begin`
  while (b < high) {
    const int64_t middle = (b + high) / 2;
    if (cu[middle + 1] > begin) {
      high = middle;
    } else {
      b = middle + 1;
    }
  }
  int64_t at = begin;
  for (; b < B && at < end; ++b) {
    const int64_t stop = std::min<int64_t>(cu[b + 1], end);
    if (stop > at) f(b, at, stop);
    at = stop;
  }
  return at;
}

}  // namespace seer::cpu

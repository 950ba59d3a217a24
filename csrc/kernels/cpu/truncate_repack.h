// Cuts every row to its kept length and packs hidden states, ids, positions and row numbers in one pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "token_copy.h"

namespace seer::cpu {

// Before the pass: the offsets of the packed rows, none beyond capacity.
inline void truncate_repack_offsets(const TruncateRepackParams& p) {
  int64_t end = 0;
  p.cu_seqlens[0] = 0;
  for (int64_t b = 0; b < p.B; ++b) {
    end += std::min(p.lengths[b], p.capacity - end);
    p.cu_seqlens[b + 1] = static_cast<int32_t>(end);
  }
}

// Packed tokens [begin, end).
inline void truncate_repack(const TruncateRepackParams& p, int64_t begin, int64_t end) {
  char* const hidden = static_cast<char*>(p.hidden_out);
  const int64_t token_bytes = p.hidden.token_bytes();
  const int64_t filled = for_each_segment(p.cu_seqlens, p.B, begin, end, [&](int64_t b, int64_t from, int64_t to) {
    const int64_t skipped = from - p.cu_seqlens[b];
    const int64_t source = p.starts[b] + skipped;
    copy_tokens(p.hidden, source, to - from, hidden + from * token_bytes);
    for (int64_t i = 0; i < to - from; ++i) p.ids_out[from + i] = p.ids[(source + i) * p.ids_stride];
    const int64_t position = (p.offsets.data ? p.offsets[b] : 0) + skipped;
    std::iota(p.positions + from, p.positions + to, static_cast<int32_t>(position));
    std::fill(p.rows + from, p.rows + to, static_cast<int32_t>(b));
  });
  zero_tokens(p.hidden, end - filled, hidden + filled * token_bytes);
  std::fill(p.ids_out + filled, p.ids_out + end, int64_t{0});
  std::fill(p.positions + filled, p.positions + end, 0);
  std::fill(p.rows + filled, p.rows + end, -1);
}

}  // namespace seer::cpu

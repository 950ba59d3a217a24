// Moves ranges of tokens into one packed tensor: row b's tokens from starts[b] on go to cu_seqlens[b] on.
// A call fills a stretch of the output, so that rows of any length share the threads evenly.
#pragma once

#include "token_copy.h"

namespace seer::cpu {

// Packed tokens [begin, end).
inline void varlen_repack(const VarlenRepackParams& p, int64_t begin, int64_t end) {
  char* const out = static_cast<char*>(p.out);
  const int64_t token_bytes = p.x.token_bytes();
  const int64_t filled = for_each_segment(p.cu_seqlens, p.B, begin, end, [&](int64_t b, int64_t from, int64_t to) {
    copy_tokens(p.x, p.starts[b] + from - p.cu_seqlens[b], to - from, out + from * token_bytes);
  });
  zero_tokens(p.x, end - filled, out + filled * token_bytes);
}

}  // namespace seer::cpu

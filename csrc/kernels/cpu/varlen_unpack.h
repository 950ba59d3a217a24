// Moves packed rows to their columns of a padded tensor, and fills what lies around them. A call writes a stretch of
// the output, so that rows of any length share the threads evenly.
#pragma once

#include "token_copy.h"

namespace seer::cpu {

// Tokens [begin, end) of the output, counted through its rows.
inline void varlen_unpack(const VarlenUnpackParams& p, int64_t begin, int64_t end) {
  char* const out = static_cast<char*>(p.out);
  const int64_t token_bytes = p.packed.token_bytes();
  for (int64_t at = begin; at < end;) {
    const int64_t b = at / p.length;
    const int64_t stop = std::min(end, (b + 1) * p.length);
    const int64_t first = b * p.length + p.columns[b];  // where the row's own tokens begin
    const int64_t from = std::clamp(first, at, stop);
    const int64_t to = std::clamp(first + p.cu_seqlens[b + 1] - p.cu_seqlens[b], at, stop);
    fill_tokens(p.packed, p.fill, from - at, out + at * token_bytes);
    copy_tokens(p.packed, p.cu_seqlens[b] + from - first, to - from, out + from * token_bytes);
    fill_tokens(p.packed, p.fill, stop - to, out + to * token_bytes);
    at = stop;
  }
}

}  // namespace seer::cpu

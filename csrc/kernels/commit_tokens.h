// The order in which slots are written, one source for every backend. It is total: no result depends on how it is
// sorted.
#pragma once

#include "params.h"

namespace seer {

// Greater where more confident, as unsigned integers; -0 is 0. NaN is 1, below -inf, which leaves 0 for no candidate.
SEER_INLINE uint64_t rank_key(double confidence) {
  if (confidence != confidence) return 1;
  const uint64_t bits = bit_cast<uint64_t>(confidence + 0.0);
  return bits >> 63 ? ~bits : bits | uint64_t{1} << 63;
}

struct CommitCandidate {
  uint64_t key;
  int64_t slot;
  int64_t entry;  // index into slots, token and confidence
};

// Highest key, then lowest slot, then lowest entry.
SEER_INLINE bool ranks_before(const CommitCandidate& a, const CommitCandidate& b) {
  if (a.key != b.key) return a.key > b.key;
  return a.slot != b.slot ? a.slot < b.slot : a.entry < b.entry;
}

// By slot; of one slot's entries the best comes first.
SEER_INLINE bool slot_ranks_before(const CommitCandidate& a, const CommitCandidate& b) {
  return a.slot != b.slot ? a.slot < b.slot : ranks_before(a, b);
}

}  // namespace seer

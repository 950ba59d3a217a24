// The order in which slots are written, one source for every backend. It is total: no result depends on how it is
// sorted.
#pragma once

#include "params.h"

namespace seer {

struct CommitCandidate {
  double confidence;
  int64_t slot;
  int64_t entry;  // index into slots, token and confidence
};

// Highest confidence, NaN after everything else, then lowest slot, then lowest entry.
SEER_INLINE bool ranks_before(const CommitCandidate& a, const CommitCandidate& b) {
  if (a.confidence > b.confidence) return true;
  if (a.confidence < b.confidence) return false;
  const bool a_nan = a.confidence != a.confidence, b_nan = b.confidence != b.confidence;
  if (a_nan != b_nan) return b_nan;
  return a.slot != b.slot ? a.slot < b.slot : a.entry < b.entry;
}

// By slot; of one slot's entries the best comes first.
SEER_INLINE bool slot_ranks_before(const CommitCandidate& a, const CommitCandidate& b) {
  return a.slot != b.slot ? a.slot < b.slot : ranks_before(a, b);
}

}  // namespace seer

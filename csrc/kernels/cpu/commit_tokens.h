// Writes the most confident tokens of each row into slots that still hold the mask. Only a selection is made, no sort:
// which slots are written matters, their order doesn't.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "../commit_tokens.h"

namespace seer::cpu {

// Moves what row b writes to the front of [first, last) and returns its end.
inline CommitCandidate* select_candidates(const CommitTokensParams& p, int64_t b, CommitCandidate* first,
                                          CommitCandidate* last) {
  if (first == last) return last;
  const double threshold = p.threshold.data ? p.threshold[b] : std::numeric_limits<double>::quiet_NaN();
  if (threshold == threshold) {
    const auto passes = [=](const CommitCandidate& c) { return c.confidence >= threshold; };
    CommitCandidate* end = std::partition(first, last, passes);
    if (end != first) return end;
    std::iter_swap(first, std::min_element(first, last, ranks_before));
    return first + 1;
  }
  const int64_t count = std::clamp<int64_t>(p.quota[b], 0, last - first);
  std::nth_element(first, first + count, last, ranks_before);
  return first + count;
}

// Rows [begin, end). `workspace` has room for N candidates; row b uses the part that its entries have in `slots`.
// Rows share no slot, so they run independently. `repeats` tells that some row may list a slot more than once.
inline void commit_tokens(const CommitTokensParams& p, bool repeats, CommitCandidate* workspace, int64_t begin,
                          int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    CommitCandidate* const first = workspace + p.cu_slots[b];
    CommitCandidate* last = first;
    for (int64_t i = p.cu_slots[b]; i < p.cu_slots[b + 1]; ++i) {
      const int64_t slot = p.slots[i * p.slots_stride];
      if (slot >= 0 && p.ids[slot * p.ids_stride] == p.mask_id) *last++ = {p.confidence[i], slot, i};
    }
    if (repeats) {  // a slot counts once, at its best entry
      const auto same_slot = [](const CommitCandidate& x, const CommitCandidate& y) { return x.slot == y.slot; };
      std::sort(first, last, slot_ranks_before);
      last = std::unique(first, last, same_slot);
    }
    CommitCandidate* const written = select_candidates(p, b, first, last);
    int64_t masks = last - first;
    for (const CommitCandidate* c = first; c != written; ++c) {
      const int64_t token = p.token[c->entry * p.token_stride];
      p.ids[c->slot * p.ids_stride] = token;
      if (token != p.mask_id) --masks;
    }
    p.written[b] = static_cast<int32_t>(written - first);
    p.remaining[b] = static_cast<int32_t>(masks);
  }
}

}  // namespace seer::cpu

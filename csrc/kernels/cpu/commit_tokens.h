// Writes the most confident tokens of each row into slots that still hold the mask. Only a selection is made, no sort:
// which slots are written matters, their order doesn't.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../commit_tokens.h"
#include "isa.h"

namespace seer::cpu {

// The first `count` are those entries of a row whose slots still hold the mask.
struct Candidates {
  std::vector<uint64_t> keys;
  std::vector<int64_t> entries;
  int64_t count;
};

// A slot counts once, at its best entry.
inline void drop_repeats(const CommitTokensParams& p, Candidates& candidates) {
  std::vector<CommitCandidate> sorted;
  for (int64_t c = 0; c < candidates.count; ++c) {
    const int64_t entry = candidates.entries[c];
    sorted.push_back({candidates.keys[c], p.slots[entry * p.slots_stride], entry});
  }
  std::sort(sorted.begin(), sorted.end(), slot_ranks_before);
  candidates.count = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && sorted[i].slot == sorted[i - 1].slot) continue;
    candidates.keys[candidates.count] = sorted[i].key;
    candidates.entries[candidates.count++] = sorted[i].entry;
  }
}

// Among the entries [first, last), those of a row. No branch on what a slot holds: no processor foresees it.
inline void find_candidates(const CommitTokensParams& p, int64_t first, int64_t last, Candidates& candidates) {
  const RealArray confidence = p.confidence;  // copies, as the stores to `keys` could change what `p` refers to
  const int64_t *const slots = p.slots, *const ids = p.ids;
  const int64_t ids_stride = p.ids_stride, slots_stride = p.slots_stride, mask_id = p.mask_id;
  uint64_t* const keys = candidates.keys.data();
  int64_t* const entries = candidates.entries.data();
  int64_t count = 0;
  for (int64_t entry = first; entry < last; ++entry) {
    const int64_t slot = slots[entry * slots_stride];
    entries[count] = entry;
    if (slot >= 0) count += ids[slot * ids_stride] == mask_id ? 1 : 0;
  }
  for (int64_t c = 0; c < count; ++c) keys[c] = rank_key(confidence[entries[c]]);
  candidates.count = count;
}

// Rows [begin, end). Rows share no slot, so they run independently. `repeats` tells that some row may list a slot more
// than once.
inline void commit_tokens(const CommitTokensParams& p, const IsaKernels& kernels, bool repeats, int64_t begin,
                          int64_t end) {
  int64_t longest = 0;
  for (int64_t b = begin; b < end; ++b) longest = std::max(longest, p.cu_slots[b + 1] - p.cu_slots[b]);
  Candidates candidates{std::vector<uint64_t>(longest), std::vector<int64_t>(longest), 0};
  std::vector<int64_t> ties(longest);
  for (int64_t b = begin; b < end; ++b) {
    find_candidates(p, p.cu_slots[b], p.cu_slots[b + 1], candidates);
    if (repeats) drop_repeats(p, candidates);
    const uint64_t* const keys = candidates.keys.data();
    const int64_t count = candidates.count;
    const auto slot_of = [&](int64_t c) { return p.slots[candidates.entries[c] * p.slots_stride]; };

    int64_t writes = clamped(p.quota[b], count);
    const double threshold = p.threshold.data ? p.threshold[b] : __builtin_nan("");
    if (threshold == threshold) {
      const uint64_t least = rank_key(threshold);
      writes = std::count_if(keys, keys + count, [=](uint64_t key) { return key >= least; });
      if (writes == 0) writes = std::min<int64_t>(1, count);
    }
    RankFloor floor = {~uint64_t{0}, 0};  // above all keys
    if (writes > 0) floor = kernels.rank_floor(keys, count, writes);
    int64_t last_slot = p.T;     // the highest that is written at the floor
    if (floor.count > writes) {  // of equal keys the lowest slots win
      int64_t equal = 0;
      for (int64_t c = 0; c < count; ++c) {
        ties[equal] = slot_of(c);
        equal += keys[c] == floor.key ? 1 : 0;
      }
      const auto last = ties.begin() + (writes - (floor.count - equal)) - 1;
      std::nth_element(ties.begin(), last, ties.begin() + equal);
      last_slot = *last;
    }
    int64_t masks = count;
    for (int64_t c = 0; c < count; ++c) {
      if (keys[c] < floor.key) continue;
      const int64_t slot = slot_of(c), token = p.token[candidates.entries[c] * p.token_stride];
      if (keys[c] == floor.key && slot > last_slot) continue;
      p.ids[slot * p.ids_stride] = token;
      if (token != p.mask_id) --masks;
    }
    p.written[b] = static_cast<int32_t>(writes);
    p.remaining[b] = static_cast<int32_t>(masks);
  }
}

}  // namespace seer::cpu

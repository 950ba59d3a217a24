// Writes the most confident tokens of each row into slots that still hold the mask. Only a selection is made, no sort:
// which slots are written matters, their order doesn't.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../commit_tokens.h"
#include "isa.h"

namespace seer::cpu {

// A slot counts once, at its best entry: the keys of its other entries become 0. Returns how many do.
inline int64_t drop_repeats(const CommitTokensParams& p, int64_t first, int64_t n, uint64_t* keys) {
  std::vector<CommitCandidate> candidates;
  for (int64_t i = 0; i < n; ++i) {
    if (keys[i] != 0) candidates.push_back({keys[i], p.slots[(first + i) * p.slots_stride], i});
  }
  std::sort(candidates.begin(), candidates.end(), slot_ranks_before);
  int64_t dropped = 0;
  for (size_t i = 1; i < candidates.size(); ++i) {
    if (candidates[i].slot != candidates[i - 1].slot) continue;
    keys[candidates[i].entry] = 0;
    ++dropped;
  }
  return dropped;
}

// Rows [begin, end). `workspace` has room for N keys; row b uses the part that its entries have in `slots`. Rows share
// no slot, so they run independently. `repeats` tells that some row may list a slot more than once.
inline void commit_tokens(const CommitTokensParams& p, const IsaKernels& kernels, bool repeats, uint64_t* workspace,
                          int64_t begin, int64_t end) {
  const RealArray confidence = p.confidence;  // copies, as the stores to `keys` could change what `p` refers to
  int64_t* const ids = p.ids;
  const int64_t ids_stride = p.ids_stride, slots_stride = p.slots_stride, mask_id = p.mask_id;
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = p.cu_slots[b], n = p.cu_slots[b + 1] - first;
    const int64_t* const slots = p.slots + first * slots_stride;
    uint64_t* const keys = workspace + first;
    int64_t masks = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t slot = slots[i * slots_stride];
      const bool open = slot >= 0 && ids[slot * ids_stride] == mask_id;
      keys[i] = rank_key(confidence[first + i]) & (open ? ~uint64_t{0} : 0);
      masks += open ? 1 : 0;
    }
    if (repeats) masks -= drop_repeats(p, first, n, keys);

    int64_t writes = clamped(p.quota[b], masks);
    const double threshold = p.threshold.data ? p.threshold[b] : __builtin_nan("");
    if (threshold == threshold) {
      const uint64_t least = rank_key(threshold);
      writes = std::count_if(keys, keys + n, [=](uint64_t key) { return key >= least; });
      if (writes == 0) writes = std::min<int64_t>(1, masks);
    }
    uint64_t floor = ~uint64_t{0};  // above all keys
    if (writes > 0) {
      RankFloor found = kernels.rank_floor(keys, n, writes);
      if (found.count > writes) {  // of equal keys the lowest slots win
        for (int64_t i = 0; i < n; ++i) {
          const uint64_t by_slot = ~uint64_t{1} - static_cast<uint64_t>(slots[i * slots_stride]);
          keys[i] = keys[i] > found.key ? ~uint64_t{0} : keys[i] == found.key ? by_slot : 0;
        }
        found = kernels.rank_floor(keys, n, writes);
      }
      floor = found.key;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (keys[i] < floor) continue;
      const int64_t token = p.token[(first + i) * p.token_stride];
      ids[slots[i * slots_stride] * ids_stride] = token;
      if (token != mask_id) --masks;
    }
    p.written[b] = static_cast<int32_t>(writes);
    p.remaining[b] = static_cast<int32_t>(masks);
  }
}

}  // namespace seer::cpu

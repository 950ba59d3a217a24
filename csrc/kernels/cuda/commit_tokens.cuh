// Writes the most confident tokens of each row into slots that still hold the mask. A block sorts a row's candidates,
// in shared memory where they fit, else in a workspace; the order is total, so the way they are sorted leaves no trace.
#pragma once

#include "../commit_tokens.h"
#include "common.cuh"

namespace seer::cuda {

constexpr int kSharedCandidates = 1024;  // 24 KiB

// All threads of the block. Bitonic, each merge begun by comparing mirrored places: all comparisons then put the lesser
// first, so what lies past `count` counts as greatest and need not exist.
template <typename Less>
__device__ void block_sort(CommitCandidate* items, int64_t count, Less less) {
  for (int64_t size = 2; size < 2 * count; size *= 2) {
    for (int64_t distance = size / 2; distance > 0; distance /= 2) {
      for (int64_t pair = threadIdx.x; pair * 2 < count + size; pair += kThreads) {
        const int64_t low = pair / distance * 2 * distance + pair % distance;
        const int64_t high = distance == size / 2 ? low / size * size + size - 1 - low % size : low + distance;
        if (low >= count || high >= count || !less(items[high], items[low])) continue;
        const CommitCandidate item = items[low];
        items[low] = items[high];
        items[high] = item;
      }
      __syncthreads();
    }
  }
}

// Grid: x over rows.
static __global__ void __launch_bounds__(kThreads, 1)
    commit_tokens_kernel(const __grid_constant__ CommitTokensParams p, CommitCandidate* workspace) {
  SEER_SHARED(CommitCandidate, shared, kSharedCandidates);
  SEER_SHARED(int, counter, 1);
  for (int64_t b = blockIdx.x; b < p.B; b += gridDim.x) {
    const int64_t begin = clamped(p.cu_slots[b], p.N), stop = clamped(p.cu_slots[b + 1], p.N);
    const int64_t entries = stop > begin ? stop - begin : 0;
    CommitCandidate* const items = entries <= kSharedCandidates ? shared : workspace + begin;
    if (threadIdx.x == 0) counter[0] = 0;
    __syncthreads();
    bool ascends = true;  // then no slot is listed twice
    for (int64_t i = threadIdx.x; i < entries; i += kThreads) {
      const int64_t entry = begin + i, slot = p.slots[entry * p.slots_stride];
      if (i > 0) ascends = ascends && p.slots[(entry - 1) * p.slots_stride] < slot;
      if (slot < 0 || slot >= p.T || p.ids[slot * p.ids_stride] != p.mask_id) continue;
      items[atomicAdd(&counter[0], 1)] = {rank_key(p.confidence[entry]), slot, entry};
    }
    const bool may_repeat = __syncthreads_or(ascends ? 0 : 1) != 0;
    int64_t count = counter[0];
    if (may_repeat) {  // a slot counts once, at its best entry
      block_sort(items, count, slot_ranks_before);
      int64_t repeats = 0;
      // From the end, as an item is compared with the one before it.
      for (int64_t last = (count - 1) / kThreads * kThreads; last >= 0 && count > 0; last -= kThreads) {
        const int64_t i = last + threadIdx.x;
        const bool repeated = i > 0 && i < count && items[i - 1].slot == items[i].slot;
        repeats += __syncthreads_count(repeated ? 1 : 0);
        if (repeated) items[i] = {0, INT64_MAX, items[i].entry};  // behind all others
        __syncthreads();
      }
      block_sort(items, count, ranks_before);
      count -= repeats;
    } else {
      block_sort(items, count, ranks_before);
    }

    const double threshold = p.threshold.data ? p.threshold[b] : __builtin_nan("");
    int64_t writes = clamped(p.quota[b], count);
    if (threshold == threshold) {
      const uint64_t least = rank_key(threshold);
      int64_t above = 0;
      for (int64_t i = threadIdx.x; i < count; i += kThreads) above += items[i].key >= least ? 1 : 0;
      above = team_sum<kThreads / kWarp>(above);
      writes = above > 0 || count == 0 ? above : 1;
    }
    int64_t unmasked = 0;
    for (int64_t i = threadIdx.x; i < writes; i += kThreads) {
      const int64_t token = p.token[items[i].entry * p.token_stride];
      p.ids[items[i].slot * p.ids_stride] = token;
      unmasked += token != p.mask_id ? 1 : 0;
    }
    unmasked = team_sum<kThreads / kWarp>(unmasked);
    if (threadIdx.x == 0) {
      p.written[b] = static_cast<int32_t>(writes);
      p.remaining[b] = static_cast<int32_t>(count - unmasked);
    }
    __syncthreads();
  }
}

}  // namespace seer::cuda

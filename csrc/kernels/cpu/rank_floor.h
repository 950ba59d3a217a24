// Selection without a sort: a floor that the k largest of some keys reach, found bit by bit by counting.
#pragma once

#include <cstdint>

#include "../types.h"

namespace seer::cpu {

struct RankFloor {
  uint64_t key;
  int64_t count;  // of keys at or above it
};

SEER_INLINE int64_t count_from(const uint64_t* keys, int64_t n, uint64_t floor) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += keys[i] >= floor ? 1 : 0;
  return count;
}

// Keys of 0 are none; at least k >= 1 are left. The count exceeds k only if the floor is the k-th largest key, of which
// there are several.
SEER_INLINE RankFloor rank_floor(const uint64_t* keys, int64_t n, int64_t k) {
  uint64_t low = 1, high = ~uint64_t{0};  // the k-th largest lies between
  int64_t above = 0;                      // keys beyond `high`, fewer than k
  for (;;) {
    uint64_t any = 0, all = ~uint64_t{0};
    int64_t count = above;
    for (int64_t i = 0; i < n; ++i) {
      const bool inside = keys[i] - low <= high - low;
      any |= inside ? keys[i] : 0;
      all &= inside ? keys[i] : ~uint64_t{0};
      count += inside ? 1 : 0;
    }
    if (count == k) return {low, count};
    if (any == all) return {any, count};
    const int first = 63 - __builtin_clzll(any ^ all);  // the highest bit that tells them apart
    const uint64_t middle = any >> first << first;
    const int64_t upper = count_from(keys, n, middle);
    if (upper >= k) {
      low = middle;
    } else {
      high = middle - 1;
      above = upper;
    }
  }
}

}  // namespace seer::cpu

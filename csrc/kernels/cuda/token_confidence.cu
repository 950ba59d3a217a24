#include "token_confidence.cuh"

#include "launchers.h"

namespace seer::cuda {
namespace {

struct Split {
  int tiles;        // per block, a power of two
  int64_t per_row;  // blocks
};

// As many tiles to a block as leave enough blocks to fill a device.
Split split_of(const TokenConfidenceParams& p) {
  constexpr int64_t kBlocks = 1024;
  const int64_t tiles = (p.V + kConfidenceTile - 1) / kConfidenceTile;
  const auto per_row = [&](int64_t n) { return tiles > n ? (tiles + n - 1) / n : 1; };
  Split split = {kWarps, per_row(kWarps)};
  while (split.tiles < kMaxTiles && p.N * per_row(2 * split.tiles) >= kBlocks && split.per_row > 1) {
    split.tiles *= 2;
    split.per_row = per_row(split.tiles);
  }
  return split;
}

template <typename T, int kCount>
int launch(const TokenConfidenceParams& p, ConfidencePart* parts, void* stream) {
  const Split split = split_of(p);
  const dim3 grid(grid_size(p.N, 1), static_cast<unsigned>(split.per_row));
  if (p.kind == ConfidenceKind::kEntropy) {
    SEER_LAUNCH((token_confidence_kernel<T, kCount, true>), grid, kThreads, 0, stream, p, split.tiles, parts);
  } else {
    SEER_LAUNCH((token_confidence_kernel<T, kCount, false>), grid, kThreads, 0, stream, p, split.tiles, parts);
  }
  const int status = launch_status();
  if (status != 0 || split.per_row == 1) return status;
  SEER_LAUNCH(merge_rows_kernel<T>, grid_size(p.N, 1), kThreads, 0, stream, p, split.per_row, parts);
  return launch_status();
}

}  // namespace
}  // namespace seer::cuda

extern "C" int64_t seer_cuda_token_confidence_workspace(const seer::TokenConfidenceParams& p) {
  const int64_t per_row = seer::cuda::split_of(p).per_row;
  return per_row > 1 ? p.N * per_row * static_cast<int64_t>(sizeof(seer::ConfidencePart)) : 0;
}

extern "C" int seer_cuda_token_confidence(const seer::TokenConfidenceParams& p, void* workspace, void* stream) {
  using namespace seer::cuda;
  if (p.N == 0) return 0;
  seer::ConfidencePart* const parts = static_cast<seer::ConfidencePart*>(workspace);
  return dispatch_float(p.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = kVectorSize<T>;
    const seer::RowLayout rows = {{0}, {p.row_stride}, 1};
    const bool vectors = p.V % kCount == 0 && rows_aligned(p.logits, rows, sizeof(T), kVectorBytes);
    return vectors ? launch<T, kCount>(p, parts, stream) : launch<T, 1>(p, parts, stream);
  });
}

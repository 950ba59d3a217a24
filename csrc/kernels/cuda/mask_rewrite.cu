#include "mask_rewrite.cuh"

#include "launchers.h"

namespace seer::cuda {
namespace {

template <typename Mask, int kCount>
int launch(const MaskRewriteParams& p, void* stream) {
  const int64_t queries = p.B * p.Q;
  if (p.L <= kWarpRow) {
    SEER_LAUNCH((mask_rewrite_kernel<Mask, kCount, 1>), grid_size(queries, kThreads / kWarp), kThreads, 0, stream, p);
  } else {
    SEER_LAUNCH((mask_rewrite_kernel<Mask, kCount, kThreads / kWarp>), grid_size(queries, 1), kThreads, 0, stream, p);
  }
  return launch_status();
}

template <typename Mask>
int choose(const MaskRewriteParams& p, void* stream) {
  using Element = typename Mask::Element;
  constexpr int kCount = kVectorSize<Element>;
  const RowLayout queries = {{0, p.Q}, {p.row_stride, p.query_stride}, 2};
  const bool vectors = p.L % kCount == 0 && rows_aligned(p.mask, queries, sizeof(Element), kVectorBytes);
  return vectors ? launch<Mask, kCount>(p, stream) : launch<Mask, 1>(p, stream);
}

}  // namespace
}  // namespace seer::cuda

extern "C" int seer_cuda_mask_rewrite(const seer::MaskRewriteParams& p, void* stream) {
  using namespace seer::cuda;
  if (p.B == 0 || p.Q == 0 || p.L == 0) return 0;
  if (!p.additive) return choose<seer::BooleanMask>(p, stream);
  return dispatch_float(p.dtype,
                        [&](auto element) { return choose<seer::AdditiveMask<decltype(element)>>(p, stream); });
}

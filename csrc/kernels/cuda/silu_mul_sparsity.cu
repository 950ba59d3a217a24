#include "silu_mul_sparsity.cuh"

#include "launchers.h"

namespace seer::cuda {
namespace {

template <typename T, int kCount>
int launch(const SiluMulSparsityParams& p, void* stream) {
  if (p.I <= kWarpRow) {
    SEER_LAUNCH((silu_mul_sparsity_kernel<T, kCount, 1>), grid_size(p.R, kThreads / kWarp), kThreads, 0, stream, p);
  } else {
    SEER_LAUNCH((silu_mul_sparsity_kernel<T, kCount, kThreads / kWarp>), grid_size(p.R, 1), kThreads, 0, stream, p);
  }
  return launch_status();
}

}  // namespace
}  // namespace seer::cuda

extern "C" int seer_cuda_silu_mul_sparsity(const seer::SiluMulSparsityParams& p, void* stream) {
  using namespace seer::cuda;
  if (p.R == 0) return 0;
  return dispatch_float(p.dtype, [&](auto element) {
    using T = decltype(element);
    const bool vectors = p.I % kVectorSize<T> == 0 && reinterpret_cast<uintptr_t>(p.act) % kVectorBytes == 0 &&
                         rows_aligned(p.gate, p.gate_rows, sizeof(T), kVectorBytes) &&
                         rows_aligned(p.up, p.up_rows, sizeof(T), kVectorBytes);
    return vectors ? launch<T, kVectorSize<T>>(p, stream) : launch<T, 1>(p, stream);
  });
}

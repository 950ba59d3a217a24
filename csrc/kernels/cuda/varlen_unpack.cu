#include "varlen_unpack.cuh"

#include "launchers.h"

extern "C" int seer_cuda_varlen_unpack(const seer::VarlenUnpackParams& p, void* stream) {
  using namespace seer::cuda;
  if (p.B == 0 || p.length == 0 || p.packed.token_bytes() == 0) return 0;
  return dispatch_unit(p.packed, p.out, [&](auto unit) {
    using Unit = decltype(unit);
    const CopyPlan plan = plan_copy(p.packed, sizeof(Unit), p.B * p.length);
    SEER_LAUNCH(varlen_unpack_kernel<Unit>, dim3(plan.grid_x, plan.grid_y), kThreads, 0, stream, p, plan);
    return launch_status();
  });
}

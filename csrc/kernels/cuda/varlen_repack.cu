#include "varlen_repack.cuh"

#include "launchers.h"

extern "C" int seer_cuda_varlen_repack(const seer::VarlenRepackParams& p, void* stream) {
  using namespace seer::cuda;
  if (p.capacity == 0 || p.x.token_bytes() == 0) return 0;
  return dispatch_unit(p.x, p.out, [&](auto unit) {
    using Unit = decltype(unit);
    const CopyPlan plan = plan_copy(p.x, sizeof(Unit), p.capacity);
    SEER_LAUNCH(varlen_repack_kernel<Unit>, dim3(plan.grid_x, plan.grid_y), kThreads, 0, stream, p, plan);
    return launch_status();
  });
}

#include "truncate_repack.cuh"

#include "launchers.h"

extern "C" int seer_cuda_truncate_repack(const seer::TruncateRepackParams& p, void* stream) {
  using namespace seer::cuda;
  return dispatch_unit(p.hidden, p.hidden_out, [&](auto unit) {
    using Unit = decltype(unit);
    const CopyPlan plan = plan_copy(p.hidden, sizeof(Unit), p.capacity > 0 ? p.capacity : 1);
    SEER_LAUNCH(truncate_repack_kernel<Unit>, dim3(plan.grid_x, plan.grid_y), kThreads, 0, stream, p, plan);
    return launch_status();
  });
}

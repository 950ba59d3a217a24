#include "ops/truncate_repack.h"

#include "common.h"
#include "kernels/cpu/truncate_repack.h"

namespace seer::cpu {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> truncate_repack_op(Tensor hidden, Tensor ids, Tensor starts,
                                                                      Tensor lengths, int64_t capacity,
                                                                      std::optional<Tensor> offsets) {
  TruncateRepackParams p = make_truncate_repack_params(hidden, ids, starts, lengths, capacity, offsets);
  check_truncate_repack_values(p);
  auto outputs = make_truncate_repack_outputs(p, hidden);
  truncate_repack_offsets(p);
  torch::stable::parallel_for(0, capacity, rows_per_task(p.hidden.token_bytes()),
                              [&](int64_t begin, int64_t end) { truncate_repack(p, begin, end); });
  return outputs;
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("truncate_repack", TORCH_BOX(&seer::cpu::truncate_repack_op)); }

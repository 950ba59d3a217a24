#include "ops/truncate_repack.h"

#include "common.h"

namespace seer::cuda {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> truncate_repack_op(Tensor hidden, Tensor ids, Tensor starts,
                                                                      Tensor lengths, int64_t capacity,
                                                                      std::optional<Tensor> offsets) {
  TruncateRepackParams p = make_truncate_repack_params(hidden, ids, starts, lengths, capacity, offsets);
  const Launch launch(hidden);
  if (debug()) {
    const Tensor host_starts = to_host(starts), host_lengths = to_host(lengths);
    std::optional<Tensor> host_offsets;
    TruncateRepackParams host = p;
    host.starts = index_array(host_starts);
    host.lengths = index_array(host_lengths);
    if (offsets) {
      host_offsets = to_host(*offsets);
      host.offsets = index_array(*host_offsets);
    }
    check_truncate_repack_values(host);
  }
  auto outputs = make_truncate_repack_outputs(p, hidden);
  check_launch("truncate_repack", seer_cuda_truncate_repack(p, launch.stream));
  return outputs;
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("truncate_repack", TORCH_BOX(&seer::cuda::truncate_repack_op)); }

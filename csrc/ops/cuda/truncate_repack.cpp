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
  Tensor hidden_out = new_output(hidden, {capacity, hidden.size(1)}, hidden.scalar_type());
  Tensor ids_out = new_output(hidden, {capacity}, ScalarType::Long);
  Tensor positions = new_output(hidden, {capacity}, ScalarType::Int);
  Tensor rows = new_output(hidden, {capacity}, ScalarType::Int);
  Tensor cu_seqlens = new_output(hidden, {p.B + 1}, ScalarType::Int);
  p.hidden_out = hidden_out.mutable_data_ptr();
  p.ids_out = ids_out.mutable_data_ptr<int64_t>();
  p.positions = positions.mutable_data_ptr<int32_t>();
  p.rows = rows.mutable_data_ptr<int32_t>();
  p.cu_seqlens = cu_seqlens.mutable_data_ptr<int32_t>();
  check_launch("truncate_repack", seer_cuda_truncate_repack(p, launch.stream));
  return {hidden_out, ids_out, positions, rows, cu_seqlens};
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("truncate_repack", TORCH_BOX(&seer::cuda::truncate_repack_op)); }

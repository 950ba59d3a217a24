#include "ops/truncate_repack.h"

#include "common.h"
#include "kernels/cpu/truncate_repack.h"

namespace seer::cpu {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> truncate_repack_op(Tensor hidden, Tensor ids, Tensor starts,
                                                                      Tensor lengths, int64_t capacity,
                                                                      std::optional<Tensor> offsets) {
  TruncateRepackParams p = make_truncate_repack_params(hidden, ids, starts, lengths, capacity, offsets);
  check_truncate_repack_values(p);
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
  truncate_repack_offsets(p);
  torch::stable::parallel_for(0, capacity, rows_per_task(p.hidden.token_bytes()),
                              [&](int64_t begin, int64_t end) { truncate_repack(p, begin, end); });
  return {hidden_out, ids_out, positions, rows, cu_seqlens};
}

}  // namespace seer::cpu

STABLE_TORCH_LIBRARY_IMPL(seer, CPU, m) { m.impl("truncate_repack", TORCH_BOX(&seer::cpu::truncate_repack_op)); }

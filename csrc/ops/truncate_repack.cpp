#include "truncate_repack.h"

#include <algorithm>
#include <limits>

#include "outputs.h"
#include "token_ranges.h"

namespace seer {
namespace {
constexpr const char* op = "truncate_repack";
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();  // positions, rows and cu_seqlens are int32
}  // namespace

TruncateRepackParams make_truncate_repack_params(const Tensor& hidden, const Tensor& ids, const Tensor& starts,
                                                 const Tensor& lengths, int64_t capacity,
                                                 const std::optional<Tensor>& offsets) {
  check_rank(op, "hidden", hidden, 2, "[N, H]");
  check_rank(op, "ids", ids, 1, "[N]");
  check_rank(op, "starts", starts, 1, "[B]");
  TruncateRepackParams p{};
  p.N = hidden.size(0);
  p.B = starts.size(0);
  p.capacity = capacity;
  p.hidden = check_tokens(op, "hidden", hidden);
  check_same_device(op, "ids", ids, hidden, "hidden");
  check_dtype(op, "ids", ids, {ScalarType::Long});
  check_shape(op, "ids", ids, {p.N}, "[N]");
  p.ids = ids.const_data_ptr<int64_t>();
  p.ids_stride = ids.stride(0);
  p.starts = check_index(op, "starts", starts, p.B, "[B]", hidden, "hidden");
  p.lengths = check_index(op, "lengths", lengths, p.B, "[B]", hidden, "hidden");
  if (offsets) p.offsets = check_index(op, "offsets", *offsets, p.B, "[B]", hidden, "hidden");
  check_size(op, "capacity", capacity, p.hidden.token_bytes(), kMaxInt32);
  return p;
}

void check_truncate_repack_values(const TruncateRepackParams& p) {
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t length = p.lengths[b];
    SEER_CHECK(length >= 0, op, "lengths", "be at least 0", length);
    check_range(op, "starts", p.starts, b, length, p.N, "N");
    if (!p.offsets.data) continue;
    const int64_t offset = p.offsets[b], max = kMaxInt32 - std::min(length, p.capacity);
    SEER_CHECK(offset >= 0 && offset <= max, op, "offsets", text("lie in [0, ", max, "] for row ", b), offset);
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> make_truncate_repack_outputs(TruncateRepackParams& p,
                                                                                const Tensor& hidden) {
  Tensor hidden_out = new_output(hidden, {p.capacity, hidden.size(1)}, hidden.scalar_type());
  Tensor ids_out = new_output(hidden, {p.capacity}, ScalarType::Long);
  Tensor positions = new_output(hidden, {p.capacity}, ScalarType::Int);
  Tensor rows = new_output(hidden, {p.capacity}, ScalarType::Int);
  Tensor cu_seqlens = new_output(hidden, {p.B + 1}, ScalarType::Int);
  p.hidden_out = hidden_out.mutable_data_ptr();
  p.ids_out = ids_out.mutable_data_ptr<int64_t>();
  p.positions = positions.mutable_data_ptr<int32_t>();
  p.rows = rows.mutable_data_ptr<int32_t>();
  p.cu_seqlens = cu_seqlens.mutable_data_ptr<int32_t>();
  return {hidden_out, ids_out, positions, rows, cu_seqlens};
}

}  // namespace seer

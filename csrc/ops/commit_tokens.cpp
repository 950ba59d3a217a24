#include "commit_tokens.h"

#include <vector>

#include "outputs.h"

namespace seer {
namespace {

constexpr const char* op = "commit_tokens";

// 1-D float of `size` elements, float64 included; any stride.
RealArray check_reals(const char* argument, const Tensor& t, int64_t size, const char* shape, const Tensor& ids) {
  check_rank(op, argument, t, 1, text(shape, "=[", size, "]").c_str());
  check_same_device(op, argument, t, ids, "ids");
  check_dtype(op, argument, t, {ScalarType::Double, ScalarType::Float, ScalarType::BFloat16, ScalarType::Half});
  check_shape(op, argument, t, {size}, shape);
  const bool wide = t.scalar_type() == ScalarType::Double;
  return {t.const_data_ptr(), t.stride(0), wide, wide ? DType::kFloat32 : check_float(op, argument, t)};
}

const int64_t* check_entries(const char* argument, const Tensor& t, int64_t N, const Tensor& ids) {
  check_rank(op, argument, t, 1, text("[N]=[", N, "]").c_str());
  check_same_device(op, argument, t, ids, "ids");
  check_dtype(op, argument, t, {ScalarType::Long});
  check_shape(op, argument, t, {N}, "[N]");
  return t.const_data_ptr<int64_t>();
}

}  // namespace

CommitTokensParams make_commit_tokens_params(const Tensor& ids, const Tensor& slots, const Tensor& token,
                                             const Tensor& confidence, const Tensor& cu_slots, const Tensor& quota,
                                             int64_t mask_id, const std::optional<Tensor>& threshold) {
  check_rank(op, "ids", ids, 1, "[T]");
  check_rank(op, "slots", slots, 1, "[N]");
  check_rank(op, "quota", quota, 1, "[B]");
  CommitTokensParams p{};
  p.T = ids.size(0);
  p.N = slots.size(0);
  p.B = quota.size(0);
  p.mask_id = mask_id;
  check_dtype(op, "ids", ids, {ScalarType::Long});
  p.ids_stride = ids.stride(0);
  SEER_CHECK(p.T <= 1 || p.ids_stride != 0, op, "ids", "have a place in memory for each element", "stride 0");
  p.slots = check_entries("slots", slots, p.N, ids);
  p.slots_stride = slots.stride(0);
  p.token = check_entries("token", token, p.N, ids);
  p.token_stride = token.stride(0);
  p.confidence = check_reals("confidence", confidence, p.N, "[N]", ids);
  p.cu_slots = check_index(op, "cu_slots", cu_slots, p.B + 1, "[B+1]", ids, "ids");
  p.quota = check_index(op, "quota", quota, p.B, "[B]", ids, "ids");
  if (threshold) p.threshold = check_reals("threshold", *threshold, p.B, "[B]", ids);
  p.ids = ids.mutable_data_ptr<int64_t>();
  return p;
}

bool check_commit_tokens_values(const CommitTokensParams& p) {
  check_offsets(op, "cu_slots", p.cu_slots, p.B);
  SEER_CHECK(p.cu_slots[p.B] <= p.N, op, "cu_slots", text("end at or before N=", p.N), p.cu_slots[p.B]);
  const int64_t entries = p.cu_slots[p.B];
  const auto slot_of = [&](int64_t entry) {
    const int64_t slot = p.slots[entry * p.slots_stride];
    SEER_CHECK(slot < p.T, op, "slots", text("be below T=", p.T), slot);
    return slot;
  };
  int64_t entry = 0;
  for (int64_t last = -1; entry < entries; ++entry) {  // most callers list them in order
    const int64_t slot = slot_of(entry);
    if (slot < 0) continue;
    if (slot <= last) break;
    last = slot;
  }
  if (entry == entries) return false;
  std::vector<uint8_t> listed(p.T);  // one that no entry lists again is in one row, and once
  bool again = false;
  for (entry = 0; entry < entries; ++entry) {
    const int64_t slot = slot_of(entry);
    if (slot < 0) continue;
    again |= listed[slot] != 0;
    listed[slot] = 1;
  }
  if (!again) return false;
  std::vector<int32_t> owner(p.T, -1);  // the row that lists a slot
  bool repeats = false;
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t row_end = p.cu_slots[b + 1];
    for (int64_t i = p.cu_slots[b]; i < row_end; ++i) {
      const int64_t slot = p.slots[i * p.slots_stride];
      if (slot < 0) continue;
      repeats = repeats || owner[slot] == b;
      SEER_CHECK(owner[slot] < 0 || owner[slot] == b, op, "slots", "belong to one row each",
                 text(slot, " in rows ", owner[slot], " and ", b));
      owner[slot] = static_cast<int32_t>(b);
    }
  }
  return repeats;
}

std::tuple<Tensor, Tensor> make_commit_tokens_outputs(CommitTokensParams& p, const Tensor& ids) {
  Tensor written = new_output(ids, {p.B}, ScalarType::Int);
  Tensor remaining = new_output(ids, {p.B}, ScalarType::Int);
  p.written = written.mutable_data_ptr<int32_t>();
  p.remaining = remaining.mutable_data_ptr<int32_t>();
  return {written, remaining};
}

}  // namespace seer

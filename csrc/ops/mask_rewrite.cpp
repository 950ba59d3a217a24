#include "mask_rewrite.h"

#include "token_ranges.h"

namespace seer {
namespace {
constexpr const char* op = "mask_rewrite";
}

MaskRewriteParams make_mask_rewrite_params(const Tensor& mask, const Tensor& columns, const Tensor& lengths) {
  check_tensor(op, "mask", mask);
  const bool flat = mask.dim() == 2;
  SEER_CHECK(flat || mask.dim() == 4, op, "mask", "have shape [B, L] or [B, 1, Q, L]", shape_text(mask));
  MaskRewriteParams p{};
  if (mask.scalar_type() != ScalarType::Bool) {
    if (flat) check_dtype(op, "mask of shape [B, L]", mask, {ScalarType::Bool});
    check_dtype(op, "mask", mask, {ScalarType::Bool, ScalarType::Float, ScalarType::BFloat16, ScalarType::Half});
    p.additive = true;
    p.dtype = check_float(op, "mask", mask);
  }
  SEER_CHECK(flat || mask.size(1) == 1, op, "mask", "have shape [B, L] or [B, 1, Q, L]", shape_text(mask));
  check_last_contiguous(op, "mask", mask);
  for (int64_t d = 0; d < mask.dim() && mask.numel() > 0; ++d) {  // empty results of torch have strides of 0
    SEER_CHECK(mask.size(d) <= 1 || mask.stride(d) != 0, op, "mask", "have a place in memory for each element",
               text("strides ", strides_text(mask)));
  }
  p.B = mask.size(0);
  p.Q = flat ? 1 : mask.size(2);
  p.L = mask.size(mask.dim() - 1);
  p.row_stride = mask.stride(0);
  p.query_stride = flat ? 0 : mask.stride(2);
  p.columns = check_index(op, "columns", columns, p.B, "[B]", mask, "mask");
  p.lengths = check_index(op, "lengths", lengths, p.B, "[B]", mask, "mask");
  p.mask = mask.mutable_data_ptr();
  return p;
}

void check_mask_rewrite_values(const MaskRewriteParams& p) {
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t length = p.lengths[b];
    SEER_CHECK(length >= 0, op, "lengths", "be at least 0", length);
    check_range(op, "columns", p.columns, b, length, p.L, "L");
  }
}

}  // namespace seer

#include "snr_boundary.h"

#include <limits>

#include "outputs.h"

namespace seer {
namespace {
constexpr const char* op = "snr_boundary";
}

SnrBoundaryParams make_snr_boundary_params(const Tensor& sparsity, const std::optional<Tensor>& lengths, int64_t window,
                                           double min_snr, double plateau, double min_jump, int64_t min_keep) {
  check_rank(op, "sparsity", sparsity, 2, "[B, G]");
  check_dtype(op, "sparsity", sparsity, {ScalarType::Float});
  check_last_contiguous(op, "sparsity", sparsity);
  SnrBoundaryParams p{};
  p.B = sparsity.size(0);
  p.G = sparsity.size(1);
  constexpr int64_t kMaxSlots = std::numeric_limits<int32_t>::max();  // boundaries are int32
  SEER_CHECK(p.G <= kMaxSlots, op, "sparsity", text("have at most ", kMaxSlots, " slots"), p.G);
  if (lengths) p.lengths = check_index(op, "lengths", *lengths, p.B, "[B]", sparsity, "sparsity");
  SEER_CHECK(window >= 1, op, "window", "be at least 1", window);
  SEER_CHECK(min_snr == min_snr, op, "min_snr", "be a number", min_snr);
  SEER_CHECK(plateau >= 0.0 && plateau <= 1.0, op, "plateau", "lie in [0, 1]", plateau);
  SEER_CHECK(min_jump == min_jump, op, "min_jump", "be a number", min_jump);
  SEER_CHECK(min_keep >= 1, op, "min_keep", "be at least 1", min_keep);
  p.sparsity = sparsity.const_data_ptr<float>();
  p.row_stride = sparsity.stride(0);
  p.window = window;
  p.min_keep = min_keep;
  p.min_snr = min_snr;
  p.plateau = plateau;
  p.min_jump = min_jump;
  return p;
}

void check_snr_boundary_values(const SnrBoundaryParams& p) {
  for (int64_t b = 0; p.lengths.data && b < p.B; ++b) {
    const int64_t n = p.lengths[b];
    SEER_CHECK(n >= 0 && n <= p.G, op, "lengths", text("lie in [0, G]=[0, ", p.G, "]"), n);
  }
}

std::tuple<Tensor, Tensor> make_snr_boundary_outputs(SnrBoundaryParams& p, const Tensor& sparsity) {
  Tensor boundary = new_output(sparsity, {p.B}, ScalarType::Int);
  Tensor snr = new_output(sparsity, {p.B}, ScalarType::Float);
  p.boundary = boundary.mutable_data_ptr<int32_t>();
  p.snr = snr.mutable_data_ptr<float>();
  return {boundary, snr};
}

}  // namespace seer

#include "varlen_repack.h"

#include "outputs.h"
#include "token_ranges.h"

namespace seer {
namespace {
constexpr const char* op = "varlen_repack";
}

VarlenRepackParams make_varlen_repack_params(const Tensor& x, const Tensor& starts, const Tensor& cu_seqlens,
                                             int64_t capacity) {
  check_min_rank(op, "x", x, 1, "[N, ...]");
  check_rank(op, "starts", starts, 1, "[B]");
  VarlenRepackParams p{};
  p.N = x.size(0);
  p.B = starts.size(0);
  p.capacity = capacity;
  p.x = check_tokens(op, "x", x);
  p.starts = check_index(op, "starts", starts, p.B, "[B]", x, "x");
  p.cu_seqlens = check_index(op, "cu_seqlens", cu_seqlens, p.B + 1, "[B+1]", x, "x");
  check_size(op, "capacity", capacity, p.x.token_bytes());
  return p;
}

void check_varlen_repack_values(const VarlenRepackParams& p) {
  check_offsets(op, "cu_seqlens", p.cu_seqlens, p.B);
  for (int64_t b = 0; b < p.B; ++b) {
    check_range(op, "starts", p.starts, b, p.cu_seqlens[b + 1] - p.cu_seqlens[b], p.N, "N");
  }
}

Tensor make_varlen_repack_outputs(VarlenRepackParams& p, const Tensor& x) {
  const auto x_sizes = x.sizes();
  std::vector<int64_t> sizes(x_sizes.begin(), x_sizes.end());
  sizes[0] = p.capacity;
  Tensor out = new_output(x, sizes, x.scalar_type());
  p.out = out.mutable_data_ptr();
  return out;
}

}  // namespace seer

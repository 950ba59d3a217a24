#include "mlp_sparsity.h"

#include "outputs.h"

namespace seer {

MlpSparsityParams make_mlp_sparsity_params(const Tensor& act, double threshold) {
  constexpr const char* op = "mlp_sparsity";
  check_min_rank(op, "act", act, 1, "[..., I]");
  MlpSparsityParams p{};
  p.dtype = check_float(op, "act", act);
  check_last_contiguous(op, "act", act);
  p.act_rows = check_rows(op, "act", act);
  SEER_CHECK(threshold == threshold, op, "threshold", "be a number", threshold);
  p.act = act.const_data_ptr();
  p.R = num_rows(act);
  p.I = act.size(act.dim() - 1);
  p.threshold = static_cast<float>(threshold);
  return p;
}

Tensor make_mlp_sparsity_outputs(MlpSparsityParams& p, const Tensor& act) {
  Tensor sparsity = new_output(act, outer_sizes(act), ScalarType::Float);
  p.sparsity = sparsity.mutable_data_ptr<float>();
  return sparsity;
}

}  // namespace seer

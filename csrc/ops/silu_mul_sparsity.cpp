#include "silu_mul_sparsity.h"

#include "outputs.h"

namespace seer {

SiluMulSparsityParams make_silu_mul_sparsity_params(const Tensor& gate, const Tensor& up, double threshold) {
  constexpr const char* op = "silu_mul_sparsity";
  check_min_rank(op, "gate", gate, 1, "[..., I]");
  check_same_device(op, "up", up, gate, "gate");
  SiluMulSparsityParams p{};
  p.dtype = check_float(op, "gate", gate);
  check_same_dtype(op, "up", up, gate, "gate");
  check_same_shape(op, "up", up, gate, "gate");
  check_last_contiguous(op, "gate", gate);
  check_last_contiguous(op, "up", up);
  p.gate_rows = check_rows(op, "gate", gate);
  p.up_rows = check_rows(op, "up", up);
  SEER_CHECK(threshold == threshold, op, "threshold", "be a number", threshold);
  p.gate = gate.const_data_ptr();
  p.up = up.const_data_ptr();
  p.R = num_rows(gate);
  p.I = gate.size(gate.dim() - 1);
  p.threshold = static_cast<float>(threshold);
  return p;
}

std::tuple<Tensor, Tensor> make_silu_mul_sparsity_outputs(SiluMulSparsityParams& p, const Tensor& gate) {
  const auto sizes = gate.sizes();
  Tensor act = new_output(gate, {sizes.begin(), sizes.end()}, gate.scalar_type());
  Tensor sparsity = new_output(gate, outer_sizes(gate), ScalarType::Float);
  p.act = act.mutable_data_ptr();
  p.sparsity = sparsity.mutable_data_ptr<float>();
  return {act, sparsity};
}

}  // namespace seer

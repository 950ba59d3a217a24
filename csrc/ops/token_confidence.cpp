#include "token_confidence.h"

#include <string>

#include "outputs.h"

namespace seer {
namespace {

constexpr const char* op = "token_confidence";

std::string take(StringHandle handle) {
  size_t length;
  const char* data;
  TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
  std::string taken(data, length);
  TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
  return taken;
}

ConfidenceKind kind_of(const std::string& kind) {
  if (kind == "margin") return ConfidenceKind::kMargin;
  if (kind == "entropy") return ConfidenceKind::kEntropy;
  SEER_CHECK(kind == "prob", op, "kind", "be prob, margin or entropy", text("'", kind, "'"));
  return ConfidenceKind::kProb;
}

// `[N]` of one dtype, at any stride.
void check_per_row(const char* argument, const Tensor& t, ScalarType dtype, const Tensor& logits) {
  check_rank(op, argument, t, 1, text("[N]=[", logits.size(0), "]").c_str());
  check_same_device(op, argument, t, logits, "logits");
  check_dtype(op, argument, t, {dtype});
  check_shape(op, argument, t, {logits.size(0)}, "[N]");
}

void check_ids(const char* argument, const int64_t* ids, int64_t stride, int64_t count, int64_t V) {
  for (int64_t i = 0; ids && i < count; ++i) {
    const int64_t id = ids[i * stride];
    SEER_CHECK(id >= 0 && id < V, op, argument, text("lie in [0, V)=[0, ", V, ")"), id);
  }
}

}  // namespace

TokenConfidenceParams make_token_confidence_params(const Tensor& logits, StringHandle kind_handle,
                                                   const std::optional<Tensor>& suppress,
                                                   const std::optional<Tensor>& chosen,
                                                   const std::optional<Tensor>& temperature,
                                                   const std::optional<Tensor>& key) {
  const std::string kind = take(kind_handle);
  check_rank(op, "logits", logits, 2, "[N, V]");
  TokenConfidenceParams p{};
  p.dtype = check_float(op, "logits", logits);
  check_last_contiguous(op, "logits", logits);
  p.kind = kind_of(kind);
  p.logits = logits.const_data_ptr();
  p.N = logits.size(0);
  p.V = logits.size(1);
  p.row_stride = logits.stride(0);
  if (suppress) {
    check_rank(op, "suppress", *suppress, 1, "[S]");
    check_same_device(op, "suppress", *suppress, logits, "logits");
    check_dtype(op, "suppress", *suppress, {ScalarType::Long});
    p.suppress = suppress->const_data_ptr<int64_t>();
    p.S = suppress->size(0);
    p.suppress_stride = suppress->stride(0);
  }
  if (chosen) {
    check_per_row("chosen", *chosen, ScalarType::Long, logits);
    p.chosen = chosen->const_data_ptr<int64_t>();
    p.chosen_stride = chosen->stride(0);
  }
  if (temperature) {
    SEER_CHECK(!chosen, op, "temperature", "be absent where chosen is given", "both");
    SEER_CHECK(key.has_value(), op, "key", "be given with temperature", "none");
    check_per_row("temperature", *temperature, ScalarType::Float, logits);
    p.temperature = temperature->const_data_ptr<float>();
    p.temperature_stride = temperature->stride(0);
  }
  if (key) {
    check_per_row("key", *key, ScalarType::Long, logits);
    p.key = key->const_data_ptr<int64_t>();
    p.key_stride = key->stride(0);
  }
  return p;
}

void check_token_confidence_values(const TokenConfidenceParams& p) {
  check_ids("suppress", p.suppress, p.suppress_stride, p.S, p.V);
  check_ids("chosen", p.chosen, p.chosen_stride, p.N, p.V);
}

std::tuple<Tensor, Tensor> make_token_confidence_outputs(TokenConfidenceParams& p, const Tensor& logits) {
  Tensor token = new_output(logits, {p.N}, ScalarType::Long);
  Tensor confidence = new_output(logits, {p.N}, ScalarType::Double);
  p.token = token.mutable_data_ptr<int64_t>();
  p.confidence = confidence.mutable_data_ptr<double>();
  return {token, confidence};
}

}  // namespace seer

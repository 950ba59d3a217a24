#pragma once

#include <optional>
#include <string>

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the outputs.
TokenConfidenceParams make_token_confidence_params(const Tensor& logits, const std::string& kind,
                                                   const std::optional<Tensor>& suppress,
                                                   const std::optional<Tensor>& chosen,
                                                   const std::optional<Tensor>& temperature,
                                                   const std::optional<Tensor>& key);

// Makes the outputs and points the params at them.
std::tuple<Tensor, Tensor> make_token_confidence_outputs(TokenConfidenceParams& p, const Tensor& logits);

// Checks the values of `suppress` and `chosen`, which the host must be able to read.
void check_token_confidence_values(const TokenConfidenceParams& p);

}  // namespace seer

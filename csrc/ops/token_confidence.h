#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <optional>

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the outputs. Frees `kind`, the text as the dispatcher hands it over: torch's
// own conversion to std::string leaks (pytorch issue 191340).
TokenConfidenceParams make_token_confidence_params(const Tensor& logits, StringHandle kind,
                                                   const std::optional<Tensor>& suppress,
                                                   const std::optional<Tensor>& chosen,
                                                   const std::optional<Tensor>& temperature,
                                                   const std::optional<Tensor>& key);

// Makes the outputs and points the params at them.
std::tuple<Tensor, Tensor> make_token_confidence_outputs(TokenConfidenceParams& p, const Tensor& logits);

// Checks the values of `suppress` and `chosen`, which the host must be able to read.
void check_token_confidence_values(const TokenConfidenceParams& p);

}  // namespace seer

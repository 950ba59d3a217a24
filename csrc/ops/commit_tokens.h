#pragma once

#include <optional>

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the outputs.
CommitTokensParams make_commit_tokens_params(const Tensor& ids, const Tensor& slots, const Tensor& token,
                                             const Tensor& confidence, const Tensor& cu_slots, const Tensor& quota,
                                             int64_t mask_id, const std::optional<Tensor>& threshold);

// Makes the outputs and points the params at them.
std::tuple<Tensor, Tensor> make_commit_tokens_outputs(CommitTokensParams& p, const Tensor& ids);

// Checks the values of `cu_slots` and `slots`, which the host must be able to read. Rows that share a slot are refused:
// which of them wrote it would depend on their order. Returns whether a row lists a slot twice, which is allowed.
bool check_commit_tokens_values(const CommitTokensParams& p);

}  // namespace seer

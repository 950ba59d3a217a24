#pragma once

#include <optional>

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the outputs.
TruncateRepackParams make_truncate_repack_params(const Tensor& hidden, const Tensor& ids, const Tensor& starts,
                                                 const Tensor& lengths, int64_t capacity,
                                                 const std::optional<Tensor>& offsets);

// Makes the outputs and points the params at them.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> make_truncate_repack_outputs(TruncateRepackParams& p,
                                                                                const Tensor& hidden);

// Checks the values of `starts`, `lengths` and `offsets`, which the host must be able to read.
void check_truncate_repack_values(const TruncateRepackParams& p);

}  // namespace seer

#pragma once

#include <optional>

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the outputs.
SnrBoundaryParams make_snr_boundary_params(const Tensor& sparsity, const std::optional<Tensor>& lengths, int64_t window,
                                           double min_snr, double plateau, double min_jump, int64_t min_keep);

// Makes the outputs and points the params at them.
std::tuple<Tensor, Tensor> make_snr_boundary_outputs(SnrBoundaryParams& p, const Tensor& sparsity);

// Checks the values of `lengths`, which the host must be able to read.
void check_snr_boundary_values(const SnrBoundaryParams& p);

}  // namespace seer

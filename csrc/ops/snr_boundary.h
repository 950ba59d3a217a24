#pragma once

#include <optional>

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the outputs. Values of `lengths` are each backend's to check.
SnrBoundaryParams make_snr_boundary_params(const Tensor& sparsity, const std::optional<Tensor>& lengths, int64_t window,
                                           double min_snr, double plateau, double min_jump, int64_t min_keep);

}  // namespace seer

#pragma once

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the output.
MlpSparsityParams make_mlp_sparsity_params(const Tensor& act, double threshold);

}  // namespace seer

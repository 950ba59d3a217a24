#pragma once

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the output.
MlpSparsityParams make_mlp_sparsity_params(const Tensor& act, double threshold);

// Makes the output and points the params at it.
Tensor make_mlp_sparsity_outputs(MlpSparsityParams& p, const Tensor& act);

}  // namespace seer

#pragma once

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the outputs.
SiluMulSparsityParams make_silu_mul_sparsity_params(const Tensor& gate, const Tensor& up, double threshold);

// Makes the outputs and points the params at them.
std::tuple<Tensor, Tensor> make_silu_mul_sparsity_outputs(SiluMulSparsityParams& p, const Tensor& gate);

}  // namespace seer

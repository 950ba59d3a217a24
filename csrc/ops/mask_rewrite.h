#pragma once

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills the whole struct.
MaskRewriteParams make_mask_rewrite_params(const Tensor& mask, const Tensor& columns, const Tensor& lengths);

// Checks the values of `columns` and `lengths`, which the host must be able to read.
void check_mask_rewrite_values(const MaskRewriteParams& p);

}  // namespace seer

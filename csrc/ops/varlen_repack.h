#pragma once

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the output.
VarlenRepackParams make_varlen_repack_params(const Tensor& x, const Tensor& starts, const Tensor& cu_seqlens,
                                             int64_t capacity);

// Makes the output and points the params at it.
Tensor make_varlen_repack_outputs(VarlenRepackParams& p, const Tensor& x);

// Checks the values of `starts` and `cu_seqlens`, which the host must be able to read.
void check_varlen_repack_values(const VarlenRepackParams& p);

}  // namespace seer

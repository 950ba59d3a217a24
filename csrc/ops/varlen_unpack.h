#pragma once

#include "checks.h"
#include "kernels/params.h"

namespace seer {

// Checks the arguments and fills all but the output.
VarlenUnpackParams make_varlen_unpack_params(const Tensor& packed, const Tensor& columns, const Tensor& cu_seqlens,
                                             int64_t length, double fill);

// Makes the output and points the params at it.
Tensor make_varlen_unpack_outputs(VarlenUnpackParams& p, const Tensor& packed);

// Checks the values of `columns` and `cu_seqlens`, which the host must be able to read.
void check_varlen_unpack_values(const VarlenUnpackParams& p);

}  // namespace seer

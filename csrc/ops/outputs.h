// Outputs of the ops, on every backend: contiguous, on the device of an input.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <vector>

#include "checks.h"

namespace seer {

// The sizes of `t` without its last dim.
inline std::vector<int64_t> outer_sizes(const Tensor& t) {
  const auto sizes = t.sizes();
  return {sizes.begin(), sizes.end() - 1};
}

inline Tensor new_output(const Tensor& like, const std::vector<int64_t>& sizes, ScalarType dtype) {
  return torch::stable::new_empty(like, {sizes.data(), sizes.size()}, dtype);
}

}  // namespace seer

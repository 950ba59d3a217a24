#include "ops/mlp_sparsity.h"

#include "common.h"

namespace seer::cuda {

Tensor mlp_sparsity_op(Tensor act, double threshold) {
  MlpSparsityParams p = make_mlp_sparsity_params(act, threshold);
  const Launch launch(act);
  Tensor sparsity = make_mlp_sparsity_outputs(p, act);
  check_launch("mlp_sparsity", seer_cuda_mlp_sparsity(p, launch.stream));
  return sparsity;
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("mlp_sparsity", TORCH_BOX(&seer::cuda::mlp_sparsity_op)); }

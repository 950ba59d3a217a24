#include "ops/silu_mul_sparsity.h"

#include "common.h"

namespace seer::cuda {

std::tuple<Tensor, Tensor> silu_mul_sparsity_op(Tensor gate, Tensor up, double threshold) {
  SiluMulSparsityParams p = make_silu_mul_sparsity_params(gate, up, threshold);
  const Launch launch(gate);
  auto outputs = make_silu_mul_sparsity_outputs(p, gate);
  check_launch("silu_mul_sparsity", seer_cuda_silu_mul_sparsity(p, launch.stream));
  return outputs;
}

}  // namespace seer::cuda

SEER_CUDA_LIBRARY_IMPL(m) { m.impl("silu_mul_sparsity", TORCH_BOX(&seer::cuda::silu_mul_sparsity_op)); }

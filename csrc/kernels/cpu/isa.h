// The hot loops, compiled once per x86-64 level and chosen at run time. Results are bit-identical across levels.
#pragma once

#include <cstdint>

#include "../params.h"
#include "rank_floor.h"

namespace seer::cpu {

struct IsaKernels {
  const char* name;  // "baseline", "v3", "v4"
  void (*mask_rewrite)(const MaskRewriteParams&, int64_t begin, int64_t end);
  void (*mlp_sparsity)(const MlpSparsityParams&, int64_t begin, int64_t end);
  RankFloor (*rank_floor)(const uint64_t* keys, int64_t n, int64_t k);
  void (*silu_mul_sparsity)(const SiluMulSparsityParams&, int64_t begin, int64_t end);
  void (*snr_boundary)(const SnrBoundaryParams&, double* workspace, int64_t begin, int64_t end);
  void (*token_confidence)(const TokenConfidenceParams&, int64_t begin, int64_t end);
};

// Levels that this build has and this machine runs, weakest first; null after the last.
const IsaKernels* const* isa_available();

// The strongest available level, or what SEER_CPU_ISA names, chosen at the first call; null if that isn't available.
const IsaKernels* isa_kernels();

}  // namespace seer::cpu

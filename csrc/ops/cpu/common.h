// What the CPU implementations share: the grain of their parallel loops, the kernels of this machine.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"

namespace seer::cpu {

// Rows per task, so that a task is worth the hand-over to another thread.
inline int64_t rows_per_task(int64_t row_elements) {
  constexpr int64_t kElements = 32768;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, row_elements));
}

inline const IsaKernels& isa_kernels_or_fail(const char* op) {
  const IsaKernels* kernels = isa_kernels();
  if (kernels == nullptr) {
    std::string names;
    for (const IsaKernels* const* level = isa_available(); *level; ++level) names += text(" ", (*level)->name);
    fail(op, "SEER_CPU_ISA", text("be one of this machine's:", names), std::getenv("SEER_CPU_ISA"));
  }
  return *kernels;
}

}  // namespace seer::cpu

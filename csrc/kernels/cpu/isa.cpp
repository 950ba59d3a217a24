#include "isa.h"

#include <cstdlib>
#include <cstring>

namespace seer::cpu {

extern const IsaKernels kernels_baseline;
#if SEER_X86_LEVELS
extern const IsaKernels kernels_v3, kernels_v4;
#endif

namespace {

struct Available {
  const IsaKernels* levels[4] = {};
  int count = 0;

  Available() {
    levels[count++] = &kernels_baseline;
#if SEER_X86_LEVELS  // the features tested are those that CMakeLists.txt compiles the levels for
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2")) return;
    levels[count++] = &kernels_v3;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      levels[count++] = &kernels_v4;
    }
#endif
  }
};

const Available& available() {
  static const Available instance;
  return instance;
}

const IsaKernels* choose() {
  const Available& found = available();
  const char* wanted = std::getenv("SEER_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return found.levels[found.count - 1];
  for (int i = 0; i < found.count; ++i) {
    if (std::strcmp(found.levels[i]->name, wanted) == 0) return found.levels[i];
  }
  return nullptr;
}

}  // namespace

const IsaKernels* const* isa_available() { return available().levels; }

const IsaKernels* isa_kernels() {
  static const IsaKernels* const chosen = choose();
  return chosen;
}

}  // namespace seer::cpu

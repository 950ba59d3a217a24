// What kernels are written in: CUDA, or its emulation on the CPU, where tests check every access and every schedule.
//
// Kernel source compiles twice: by nvcc, and by `g++ -x c++ -DSEER_EMULATE -fno-strict-aliasing -ffp-contract=off`
// against the emulator's cuda_emulator.hpp, which defines these macros, the barriers, warp operations and atomics, and
// the runtime's status functions. So kernels declare shared memory and launch by the macros, have one __syncthreads a
// line, name the mask of every warp operation, keep PTX inside `#if defined(__CUDA_ARCH__)`, and never wait for another
// block.
#pragma once

#if defined(SEER_EMULATE)

#include "cuda_emulator.hpp"

#else

#include <cuda_runtime.h>

#define SEER_SHARED(T, name, N) __shared__ T name[N]
#define SEER_LAUNCH(kernel, grid, block, smem, stream, ...) \
  kernel<<<(grid), (block), (smem), static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)

#endif

namespace seer::cuda {
inline int launch_status() { return static_cast<int>(cudaGetLastError()); }
inline const char* status_text(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }
}  // namespace seer::cuda

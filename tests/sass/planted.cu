// Kernels as they must not be. The test of the budget compiles them to see that it bites.
#include <cstdint>

struct alignas(16) Aligned {
  float values[4];
};

struct Unaligned {
  float values[4];
};

// More live values than 32 registers hold, which two blocks of 1024 threads leave each thread.
__global__ void __launch_bounds__(1024, 2) spilling_kernel(const float* from, float* to) {
  float values[48];
#pragma unroll
  for (int i = 0; i < 48; ++i) values[i] = from[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 48; ++i) to[i * 1024 + threadIdx.x] = values[i] * values[(i * 7 + 5) % 48];
}

// An array indexed by data has a stack.
__global__ void stack_kernel(const int* order, float* to) {
  float values[16];
  for (int i = 0; i < 16; ++i) values[i] = to[i];
  for (int i = 0; i < 16; ++i) to[i] = values[order[i] & 15];
}

template <typename Vector>
__device__ void add(const Vector* from, const float* more, float* to, int count) {
  float sum = 0.0f;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const Vector vector = from[i];
    for (int k = 0; k < 4; ++k) sum += vector.values[k];
    if (more != nullptr) sum += more[i];
  }
  to[threadIdx.x] = sum;
}

// As they should be.
__global__ void wide_kernel(const Aligned* from, float* to, int count) { add(from, nullptr, to, count); }

__global__ void narrow_kernel(const Unaligned* from, float* to, int count) { add(from, nullptr, to, count); }

// A narrow load for each wide one.
__global__ void mixed_kernel(const Aligned* from, const float* more, float* to, int count) {
  add(from, more, to, count);
}

// Small kernels, each with a switch that plants one bug: proof that the emulator and the sanitizers still find its
// kind. `planted_bugs NAME [fixed]` runs one on exactly sized buffers. Exit status: 0 right result, 1 wrong result, 2
// launch error (text on stderr), 3 usage; a sanitizer that finds something ends the process with a status of its own.
#include <cstdio>
#include <cstring>
#include <memory>

#include "cuda_emulator.hpp"

namespace {

constexpr unsigned kFull = 0xffffffffu;
constexpr int kThreads = 64;

// ---- barriers and races ----

// Every thread hands a value to the thread half a block away: kBug forgets the barrier between write and read.
template <bool kBug>
__global__ void missing_barrier(int* out) {
  SEER_SHARED(int, box, kThreads);
  const int t = threadIdx.x;
  box[t] = t;
  if (!kBug) __syncthreads();
  out[blockIdx.x * kThreads + t] = box[(t + kThreads / 2) % kThreads];
}

// Inclusive scan in place: kBug forgets the barrier between the read and the write of one round.
template <bool kBug>
__global__ void missing_second_barrier(int* out) {
  SEER_DYN_SHARED(int, sum);
  const int t = threadIdx.x;
  sum[t] = t;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const int left = t >= step ? sum[t - step] : 0;
    if (!kBug) __syncthreads();
    sum[t] += left;
    __syncthreads();
  }
  out[blockIdx.x * kThreads + t] = sum[t];
}

// Neighbours swap through shared memory: kBug takes a shuffle for a barrier, which orders no memory.
template <bool kBug>
__global__ void missing_syncwarp(int* out) {
  SEER_SHARED(int, box, kThreads);
  const int t = threadIdx.x;
  box[t] = t;
  if (kBug) {
    __shfl_xor_sync(kFull, t, 1);
  } else {
    __syncwarp();
  }
  out[blockIdx.x * kThreads + t] = box[t ^ 1];
}

// Thread 0 of every block adds to one word: kBug does so without an atomic.
template <bool kBug>
__global__ void cross_block_race(int* out) {
  if (threadIdx.x != 0) return;
  if (kBug) {
    out[0] += 1;
  } else {
    atomicAdd(out, 1);
  }
}

// Shared memory is added to: kBug takes it for zero at the start.
template <bool kBug>
__global__ void uninitialised_shared(int* out) {
  SEER_SHARED(int, sum, kThreads);
  const int t = threadIdx.x;
  if (!kBug) sum[t] = 0;
  sum[t] += t;
  out[blockIdx.x * kThreads + t] = sum[t];
}

// ---- out of bounds ----

template <bool kBug>
__global__ void static_shared_overflow(int* out) {
  SEER_SHARED(int, box, kThreads);
  const int t = threadIdx.x;
  box[kBug ? t + 1 : t] = t;
  __syncthreads();
  out[blockIdx.x * kThreads + t] = box[t];
}

template <bool kBug>
__global__ void dynamic_shared_overflow(int* out) {
  SEER_DYN_SHARED(int, box);
  const int t = threadIdx.x;
  box[kBug ? t + 1 : t] = t;
  __syncthreads();
  out[blockIdx.x * kThreads + t] = box[t];
}

template <bool kBug>
__global__ void global_read_overflow(const int* in, int* out) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  out[i] = in[kBug ? i + 1 : i];
}

template <bool kBug>
__global__ void global_write_overflow(int* out) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  out[kBug ? i + 1 : i] = i;
}

// A 16-byte load from 4 bytes past a multiple of 16 faults on a GPU.
template <bool kBug>
__global__ void misaligned_vector(const int* in, int* out) {
  if (threadIdx.x != 0) return;
  const int4 v = *reinterpret_cast<const int4*>(in + (kBug ? 1 : 0));
  out[0] = v.x + v.y + v.z + v.w;
}

// ---- misuse of barriers and warps ----

// Half of the threads wait at another barrier.
template <bool kBug>
__global__ void divergent_barrier(int* out) {
  if (kBug && threadIdx.x < kThreads / 2) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[blockIdx.x * kThreads + threadIdx.x] = 1;
}

// Half of a warp waits for its other half, which waits for the block.
template <bool kBug>
__global__ void deadlock(int* out) {
  if (kBug && threadIdx.x % 2 == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  out[blockIdx.x * kThreads + threadIdx.x] = 1;
}

// A vote of all lanes after some have left.
template <bool kBug>
__global__ void exited_lane(int* out) {
  const int t = threadIdx.x;
  if (kBug && t % 32 >= 16) return;
  out[blockIdx.x * kThreads + t] = __any_sync(kFull, 1);
}

template <bool kBug>
__global__ void unequal_masks(int* out) {
  const int t = threadIdx.x;
  out[blockIdx.x * kThreads + t] = __any_sync(kBug && t % 32 == 5 ? 0x7fffffffu : kFull, 1);
}

template <bool kBug>
__global__ void lane_not_in_mask(int* out) {
  out[blockIdx.x * kThreads + threadIdx.x] = __any_sync(kBug ? 0xfffffffeu : kFull, 1);
}

// Both halves of a warp shuffle with the full mask, but not in one place.
template <bool kBug>
__global__ void divergent_shuffle(int* out) {
  int v = 1;
  if (kBug && threadIdx.x % 2 == 1) {
    v = __shfl_xor_sync(kFull, v, 1);
  } else {
    v = __shfl_xor_sync(kFull, v, 1);
  }
  out[blockIdx.x * kThreads + threadIdx.x] = v;
}

// A shuffle from a lane that its mask doesn't name.
template <bool kBug>
__global__ void absent_source(int* out) {
  const int t = threadIdx.x;
  int v = 1;
  if (t % 32 < 16) v = __shfl_sync(0xffffu, v, kBug ? 16 : 0);
  out[blockIdx.x * kThreads + t] = v;
}

template <bool kBug>
__global__ void too_much_shared(int* out) {
  SEER_SHARED(char, half, kBug ? 32 * 1024 : 16 * 1024);
  half[threadIdx.x] = 1;
  out[blockIdx.x * kThreads + threadIdx.x] = half[threadIdx.x];
}

// ---- running them ----

constexpr int kBlocks = 3;
constexpr int kCount = kBlocks * kThreads;

int expect(bool right) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  return error != cudaSuccess ? 2 : right ? 0 : 1;
}

// out[i] must become value(i).
template <typename Value>
int run(void (*kernel)(int*), size_t dynamic_bytes, Value value) {
  const std::unique_ptr<int[]> out(new int[kCount]());
  SEER_LAUNCH(kernel, kBlocks, kThreads, dynamic_bytes, nullptr, out.get());
  bool right = true;
  for (int i = 0; i < kCount; ++i) right &= out[i] == value(i);
  return expect(right);
}

int run_copy(void (*kernel)(const int*, int*), int blocks, int in_count, int first) {
  const std::unique_ptr<int[]> in(new int[in_count]), out(new int[kCount]);
  for (int i = 0; i < in_count; ++i) in[i] = i;
  SEER_LAUNCH(kernel, blocks, kThreads, 0, nullptr, in.get(), out.get());
  return expect(out[0] == first);
}

template <bool kBug>
int run_named(const char* name) {
  const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  const auto position = [](int i) { return i; };
  const auto in_block = [](int i) { return i % kThreads; };
  const auto one = [](int) { return 1; };
  if (is("missing_barrier")) {
    return run(missing_barrier<kBug>, 0, [](int i) { return (i + kThreads / 2) % kThreads; });
  }
  if (is("missing_second_barrier")) {
    return run(missing_second_barrier<kBug>, kThreads * sizeof(int),
               [](int i) { return i % kThreads * (i % kThreads + 1) / 2; });
  }
  if (is("missing_syncwarp")) return run(missing_syncwarp<kBug>, 0, [](int i) { return i % kThreads ^ 1; });
  if (is("cross_block_race")) return run(cross_block_race<kBug>, 0, [](int i) { return i == 0 ? kBlocks : 0; });
  if (is("uninitialised_shared")) return run(uninitialised_shared<kBug>, 0, in_block);
  if (is("static_shared_overflow")) return run(static_shared_overflow<kBug>, 0, in_block);
  if (is("dynamic_shared_overflow")) return run(dynamic_shared_overflow<kBug>, kThreads * sizeof(int), in_block);
  if (is("global_write_overflow")) return run(global_write_overflow<kBug>, 0, position);
  if (is("global_read_overflow")) return run_copy(global_read_overflow<kBug>, kBlocks, kCount, 0);
  if (is("misaligned_vector")) return run_copy(misaligned_vector<kBug>, 1, 8, 6);
  if (is("divergent_barrier")) return run(divergent_barrier<kBug>, 0, one);
  if (is("deadlock")) return run(deadlock<kBug>, 0, one);
  if (is("exited_lane")) return run(exited_lane<kBug>, 0, one);
  if (is("unequal_masks")) return run(unequal_masks<kBug>, 0, one);
  if (is("lane_not_in_mask")) return run(lane_not_in_mask<kBug>, 0, one);
  if (is("divergent_shuffle")) return run(divergent_shuffle<kBug>, 0, one);
  if (is("absent_source")) return run(absent_source<kBug>, 0, one);
  if (is("too_much_shared")) return run(too_much_shared<kBug>, 20 * 1024, one);
  std::fprintf(stderr, "no kernel is called %s\n", name);
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return run_named<true>(argv[1]);
  if (argc == 3 && std::strcmp(argv[2], "fixed") == 0) return run_named<false>(argv[1]);
  std::fprintf(stderr, "usage: planted_bugs NAME [fixed]\n");
  return 3;
}

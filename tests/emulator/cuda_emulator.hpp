// CUDA's language and library, as far as our kernels use it, for g++: the unchanged .cu files run on the CPU. Threads
// are fibers (fibers.cpp) that run one at a time, from one synchronising call to the next. Modelled: blocks and warps,
// barriers, shuffles and votes with explicit masks, shared memory, atomics, launch limits. Not modelled: time, streams,
// clusters, weak memory order between blocks. Whatever is missing here doesn't compile, so that nothing is guessed:
// approximate functions (__expf), __activemask, __shared__ (use SEER_SHARED), inline PTX.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

// Approximations, whose results only a device knows; glibc has functions of some of these names.
#pragma GCC poison __expf __exp10f __logf __log2f __log10f __powf __sinf __cosf __tanf __sincosf __fdividef __saturatef

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

// ---- types ----

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define EMULATED_VECTORS(T, name)                                               \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                            \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                    \
  struct alignas(sizeof(T) < 8 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; }; \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(unsigned, uint)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(unsigned short, ushort)
EMULATED_VECTORS(long long, longlong)
EMULATED_VECTORS(unsigned long long, ulonglong)
EMULATED_VECTORS(float, float)
EMULATED_VECTORS(double, double)
#undef EMULATED_VECTORS

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// ---- host API ----

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};
using cudaStream_t = struct CUstream_st*;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

// The error of the last launch, once; what the scheduler found wrong in a kernel is cudaErrorLaunchFailure.
cudaError_t cudaGetLastError();
// Of a failed launch: what was found, with the source lines of the threads involved. Valid until the next failure.
const char* cudaGetErrorString(cudaError_t error);

// ---- the scheduler's side ----

namespace cuda_emulator {

struct Location {
  const char* file;
  int line;
};
// As a default argument it names the caller's line.
#define EMULATED_CALL_SITE ::cuda_emulator::Location at = {__builtin_FILE(), __builtin_LINE()}

enum class Reduction { kNone, kCount, kAnd, kOr };
enum class WarpOp { kSync, kVote, kShuffle };

int barrier(Reduction reduction, bool predicate, Location at);
// Waits for the lanes of `mask`. kVote: the lanes whose value isn't 0. kShuffle: the value of lane `source`.
uint64_t warp_op(WarpOp op, unsigned mask, uint64_t value, int source, Location at);
int lane();
void* dynamic_shared();
// The running block's memory of this key, made on first use.
void* static_shared(const void* key, size_t bytes);
cudaError_t set_dynamic_limit(const void* kernel, int bytes);
void launch(dim3 grid, dim3 block, size_t dynamic_bytes, const void* kernel, void (*run)(const void*),
            const void* call);

// Arguments are evaluated and converted once, as on a GPU, and every thread gets its copy.
template <typename... Params, typename... Args>
void launch(dim3 grid, dim3 block, size_t dynamic_bytes, cudaStream_t, void (*kernel)(Params...), Args... args) {
  static_assert((std::is_trivially_copyable_v<Params> && ...), "kernels take plain values");
  static_assert((size_t{0} + ... + sizeof(Params)) <= 4096, "kernels take at most 4096 bytes of arguments");
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> params;
  };
  const Call call{kernel, std::tuple<Params...>(args...)};
  const auto run = [](const void* data) {
    const Call& call = *static_cast<const Call*>(data);
    std::apply(call.kernel, call.params);
  };
  launch(grid, block, dynamic_bytes, reinterpret_cast<const void*>(kernel), run, &call);
}

template <typename To, typename From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<From>);
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T, typename... Ts>
constexpr bool is_one_of = (std::is_same_v<T, Ts> || ...);

template <typename T>
T shuffle(unsigned mask, T value, int source, int width, Location at) {
  static_assert(is_one_of<T, int, unsigned, long, unsigned long, long long, unsigned long long, float, double>,
                "CUDA shuffles int, unsigned, long, long long, float and double");
  const int end = (lane() & ~(width - 1)) + width;
  if (source < end - width || source >= end) source = lane();
  if constexpr (sizeof(T) == 4) {
    return bits_as<T>(static_cast<uint32_t>(warp_op(WarpOp::kShuffle, mask, bits_as<uint32_t>(value), source, at)));
  } else {
    return bits_as<T>(warp_op(WarpOp::kShuffle, mask, bits_as<uint64_t>(value), source, at));
  }
}

}  // namespace cuda_emulator

// A reference to an array on the heap, made for the block: its exact size is what AddressSanitizer checks.
#define SEER_SHARED(T, name, N)     \
  static const char name##_key = 0; \
  T(&name)[N] = *static_cast<T(*)[N]>(::cuda_emulator::static_shared(&name##_key, sizeof(T[N])))
#define SEER_DYN_SHARED(T, name) T* name = static_cast<T*>(::cuda_emulator::dynamic_shared())
#define SEER_LAUNCH(kernel, grid, block, smem, stream, ...) \
  ::cuda_emulator::launch((grid), (block), (smem), static_cast<cudaStream_t>(stream), (kernel), ##__VA_ARGS__)

template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute, int bytes) {
  return cuda_emulator::set_dynamic_limit(reinterpret_cast<const void*>(kernel), bytes);
}

// ---- synchronisation ----

inline void __syncthreads(EMULATED_CALL_SITE) { cuda_emulator::barrier(cuda_emulator::Reduction::kNone, false, at); }
inline int __syncthreads_count(int predicate, EMULATED_CALL_SITE) {
  return cuda_emulator::barrier(cuda_emulator::Reduction::kCount, predicate != 0, at);
}
inline int __syncthreads_and(int predicate, EMULATED_CALL_SITE) {
  return cuda_emulator::barrier(cuda_emulator::Reduction::kAnd, predicate != 0, at);
}
inline int __syncthreads_or(int predicate, EMULATED_CALL_SITE) {
  return cuda_emulator::barrier(cuda_emulator::Reduction::kOr, predicate != 0, at);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATED_CALL_SITE) {
  cuda_emulator::warp_op(cuda_emulator::WarpOp::kSync, mask, 0, 0, at);
}

// ---- warps ----

inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATED_CALL_SITE) {
  return static_cast<unsigned>(cuda_emulator::warp_op(cuda_emulator::WarpOp::kVote, mask, predicate != 0, 0, at));
}
inline int __any_sync(unsigned mask, int predicate, EMULATED_CALL_SITE) {
  return __ballot_sync(mask, predicate, at) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMULATED_CALL_SITE) {
  return __ballot_sync(mask, predicate == 0, at) == 0;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATED_CALL_SITE) {
  const int first = cuda_emulator::lane() & ~(width - 1);
  return cuda_emulator::shuffle(mask, value, first + (source & (width - 1)), width, at);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, EMULATED_CALL_SITE) {
  return cuda_emulator::shuffle(mask, value, cuda_emulator::lane() ^ lanes, width, at);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_CALL_SITE) {
  return cuda_emulator::shuffle(mask, value, cuda_emulator::lane() + static_cast<int>(delta), width, at);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_CALL_SITE) {
  return cuda_emulator::shuffle(mask, value, cuda_emulator::lane() - static_cast<int>(delta), width, at);
}

// ---- memory ----

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, T value) {
  *address = value;
}
template <typename T>
void __stcg(T* address, T value) {
  *address = value;
}

// Atomics order nothing but themselves, as on a GPU.
namespace cuda_emulator {

template <typename T, typename F>
T atomic_update(T* address, F&& next) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  Bits* word = reinterpret_cast<Bits*>(address);
  Bits old = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(word, &old, bits_as<Bits>(next(bits_as<T>(old))), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return bits_as<T>(old);
}

template <typename T>
using Same = std::enable_if_t<true, T>;  // an argument that doesn't take part in the deduction of T

}  // namespace cuda_emulator

#define EMULATED_ATOMIC(name, next, ...)                                                           \
  template <typename T>                                                                            \
  T name(T* address, cuda_emulator::Same<T> value) {                                               \
    static_assert(cuda_emulator::is_one_of<T, __VA_ARGS__>, #name " doesn't take this type");      \
    return cuda_emulator::atomic_update(address, [value](T old) { return static_cast<T>(next); }); \
  }
EMULATED_ATOMIC(atomicAdd, old + value, int, unsigned, unsigned long long, float, double)
EMULATED_ATOMIC(atomicMin, old < value ? old : value, int, unsigned, long long, unsigned long long)
EMULATED_ATOMIC(atomicMax, old > value ? old : value, int, unsigned, long long, unsigned long long)
EMULATED_ATOMIC(atomicAnd, old& value, int, unsigned, unsigned long long)
EMULATED_ATOMIC(atomicOr, old | value, int, unsigned, unsigned long long)
EMULATED_ATOMIC(atomicExch, (static_cast<void>(old), value), int, unsigned, unsigned long long, float)
#undef EMULATED_ATOMIC
template <typename T>
T atomicCAS(T* address, cuda_emulator::Same<T> compare, cuda_emulator::Same<T> value) {
  static_assert(cuda_emulator::is_one_of<T, int, unsigned, unsigned long long>, "atomicCAS doesn't take this type");
  return cuda_emulator::atomic_update(address, [=](T old) { return old == compare ? value : old; });
}

// ---- arithmetic ----

// Of integers alone: of floats, CUDA's min and max drop NaN and C++'s don't, so kernels say fminf and fmaxf.
template <typename T>
constexpr T min(T a, T b) {
  static_assert(std::is_integral_v<T>, "min of floats is fminf or fmin");
  return b < a ? b : a;
}
template <typename T>
constexpr T max(T a, T b) {
  static_assert(std::is_integral_v<T>, "max of floats is fmaxf or fmax");
  return a < b ? b : a;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }

inline float __int_as_float(int x) { return cuda_emulator::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_emulator::bits_as<float>(x); }
inline int __float_as_int(float x) { return cuda_emulator::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_emulator::bits_as<unsigned>(x); }
inline double __longlong_as_double(long long x) { return cuda_emulator::bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return cuda_emulator::bits_as<long long>(x); }

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }

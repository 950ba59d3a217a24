// The host's side of the emulated GPU: launches, their limits, their errors. Streams don't exist: a launch returns when
// the kernel is done. SEER_EMU_SEED=n, read at each launch, permutes its schedule; without it, or 0, all is in order.
#include <climits>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "scheduler.hpp"

namespace cuda_emulator {
namespace {

// Of every GPU since sm_80. More shared memory than the default is to be asked for, and can be had from 99 KB on.
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kDefaultShared = 48 * 1024;
constexpr size_t kMaxShared = 99 * 1024;

std::mutex mutex;  // one launch at a time
thread_local cudaError_t last_error = cudaSuccess;
std::string failure;  // of the last kernel that failed
std::map<const void*, size_t> dynamic_limits;
std::set<const void*> kernels;
long long launches = 0;

bool is_valid(dim3 grid, dim3 block) {
  return grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= INT_MAX && grid.y <= 65535 && grid.z <= 65535 &&
         block.x >= 1 && block.y >= 1 && block.z >= 1 && block.x <= kMaxThreads && block.y <= kMaxThreads &&
         block.z <= 64 && uint64_t{block.x} * block.y * block.z <= kMaxThreads;
}

uint64_t environment_seed() {
  const char* text = std::getenv("SEER_EMU_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

}  // namespace

cudaError_t set_dynamic_limit(const void* kernel, int bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (bytes < 0 || static_cast<size_t>(bytes) > kMaxShared) return last_error = cudaErrorInvalidValue;
  dynamic_limits[kernel] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

void launch(dim3 grid, dim3 block, size_t dynamic_bytes, const void* kernel, void (*run)(const void*),
            const void* call) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto raised = dynamic_limits.find(kernel);
  const bool is_raised = raised != dynamic_limits.end();
  if (!is_valid(grid, block) || dynamic_bytes > (is_raised ? raised->second : kDefaultShared)) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  ++launches;
  kernels.insert(kernel);
  const size_t shared_limit = is_raised ? kMaxShared : kDefaultShared;
  const std::string found = run_blocks({grid, block, dynamic_bytes, shared_limit, run, call, environment_seed()});
  if (found.empty()) return;
  failure = found;
  last_error = cudaErrorLaunchFailure;
}

}  // namespace cuda_emulator

cudaError_t cudaGetLastError() {
  const cudaError_t error = cuda_emulator::last_error;
  cuda_emulator::last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorLaunchFailure: return cuda_emulator::failure.c_str();
  }
  return "unknown error";
}

// For the tests: that an op launched something, and how much was run.
extern "C" {
__attribute__((visibility("default"))) long long cuda_emulator_launches() { return cuda_emulator::launches; }
__attribute__((visibility("default"))) int cuda_emulator_kernels() {
  return static_cast<int>(cuda_emulator::kernels.size());
}
}

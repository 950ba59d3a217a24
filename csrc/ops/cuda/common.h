// What the CUDA bindings share: registration, device guard and stream, outputs, launch status, checks of device values.
//
// The same bindings compile a second time into the tests' emulation module: with -DSEER_EMULATE they implement
// `seer_emu`, whose schemas the tests define, for the CPU key, on tensors in host memory, with no guard and a null
// stream. Such a module is csrc/ops/{checks,<op>}.cpp, csrc/ops/cuda/<op>.cpp, csrc/kernels/cuda/*.cu and the emulator.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdlib>
#include <cstring>

#include "kernels/cuda/launchers.h"
#include "ops/outputs.h"

#if defined(SEER_EMULATE)

#define SEER_CUDA_LIBRARY_IMPL(m) STABLE_TORCH_LIBRARY_IMPL(seer_emu, CPU, m)

namespace seer::cuda {

struct Launch {
  explicit Launch(const Tensor&) {}
  void* stream = nullptr;
};

inline Tensor to_host(const Tensor& t) { return t; }

}  // namespace seer::cuda

#else

#define SEER_CUDA_LIBRARY_IMPL(m) STABLE_TORCH_LIBRARY_IMPL(seer, CUDA, m)

// Of libtorch_cuda alone: weak, so that the extension loads where torch has no CUDA, and where no op gets here.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace seer::cuda {

// Makes the tensor's device the current one, and knows its current stream.
struct Launch {
  explicit Launch(const Tensor& t) : guard(t.get_device_index()) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream));
  }
  torch::stable::accelerator::DeviceGuard guard;
  void* stream = nullptr;
};

// Waits for the device.
inline Tensor to_host(const Tensor& t) {
  return torch::stable::to(t, torch::stable::Device(torch::headeronly::DeviceType::CPU));
}

}  // namespace seer::cuda

#endif

namespace seer::cuda {

// SEER_DEBUG=1: values in device memory are checked as the CPU op checks them, at the price of a wait. Not in a graph
// capture, which can't wait.
inline bool debug() {
  const char* const value = std::getenv("SEER_DEBUG");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

// Of a tensor that check_index has passed, or of its copy.
inline IndexArray index_array(const Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.scalar_type() == ScalarType::Long};
}

// Device memory of the current stream, which may be used as long as that stream's work is the next to use it.
inline Tensor new_workspace(const Tensor& like, int64_t bytes) { return new_output(like, {bytes}, ScalarType::Byte); }

inline void check_launch(const char* op, int status) {
  SEER_CHECK(status == 0, op, "the CUDA launch", "succeed", seer_cuda_error_string(status));
}

}  // namespace seer::cuda

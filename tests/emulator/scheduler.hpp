// What a launch asks of the scheduler.
#pragma once

#include <string>

#include "cuda_emulator.hpp"

namespace cuda_emulator {

struct Launch {
  dim3 grid, block;
  size_t dynamic_bytes, shared_limit;  // bytes of a block: dynamic shared memory, and all of it at most
  void (*run)(const void*);            // a thread's work on `call`
  const void* call;
  uint64_t seed;  // of the order of blocks and of the threads' turns; 0: ascending
};

// Runs every thread to its end. Returns what was found wrong, with the source lines of the threads; else nothing.
std::string run_blocks(const Launch& launch);

}  // namespace cuda_emulator

// One fiber: a stack of its own, and the switch between it and the scheduler. x86-64 switches in a few instructions;
// elsewhere (or with EMULATOR_UCONTEXT) ucontext does, several times slower.
// EMULATOR_ASAN and EMULATOR_TSAN tell the sanitizers of the switches. To ThreadSanitizer each fiber is a thread, and a
// switch orders nothing: only acquire() and release() do. Files that include this are compiled without -fsanitize.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>

#if !defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)
#define EMULATOR_UCONTEXT
#endif

#if defined(EMULATOR_UCONTEXT)
#include <ucontext.h>
#else
extern "C" void cuda_emulator_switch(void** saved, void* next);
// Saves what a callee must, the stack pointer last, and takes up where `next` was saved.
asm(R"(
.text
.hidden cuda_emulator_switch
.globl cuda_emulator_switch
.type cuda_emulator_switch,@function
cuda_emulator_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size cuda_emulator_switch, .-cuda_emulator_switch
)");
#endif

extern "C" {
#if defined(EMULATOR_ASAN)
void __sanitizer_start_switch_fiber(void** fake_stack, const void* stack, size_t bytes);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_stack, size_t* old_bytes);
void __asan_unpoison_memory_region(const volatile void* address, size_t bytes);
#elif defined(EMULATOR_TSAN)
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif
}

namespace cuda_emulator {

// What a thread did before release() happened before what another does after its acquire().
inline void release([[maybe_unused]] void* sync) {
#if defined(EMULATOR_TSAN)
  __tsan_release(sync);
#endif
}
inline void acquire([[maybe_unused]] void* sync) {
#if defined(EMULATOR_TSAN)
  __tsan_acquire(sync);
#endif
}

// In its scope, accesses and allocations are the emulator's own, not those of a CUDA thread.
struct Unobserved {
#if defined(EMULATOR_TSAN)
  Unobserved() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unobserved() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Unobserved() {}
  ~Unobserved() {}
#endif
  Unobserved(const Unobserved&) = delete;
  void operator=(const Unobserved&) = delete;
};

class Fiber {
 public:
  // `entry` runs at the first resume() and never returns.
  explicit Fiber(void (*entry)()) : entry_(entry) {
    // The page below the stack stays forbidden: an overflow faults.
    memory_ = static_cast<char*>(mmap(nullptr, page() + kStackBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED || mprotect(stack(), kStackBytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
#if defined(EMULATOR_TSAN)
    tsan_fiber_ = __tsan_create_fiber(0);
#endif
#if defined(EMULATOR_UCONTEXT)
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack();
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    makecontext(&context_, &Fiber::start, 0);
#else
    void** top = reinterpret_cast<void**>(stack() + kStackBytes - 16);
    *--top = nullptr;  // start() finds the alignment that follows a call
    *--top = reinterpret_cast<void*>(&Fiber::start);
    saved_ = top - 6;
#endif
  }

  Fiber(const Fiber&) = delete;
  void operator=(const Fiber&) = delete;

  ~Fiber() {
#if defined(EMULATOR_ASAN)
    __asan_unpoison_memory_region(stack(), kStackBytes);  // frames of an abandoned kernel
#elif defined(EMULATOR_TSAN)
    __tsan_destroy_fiber(tsan_fiber_);
#endif
    munmap(memory_, page() + kStackBytes);
  }

  // Scheduler to fiber; returns at its next yield().
  void resume() {
    running_ = this;
#if defined(EMULATOR_ASAN)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack(), kStackBytes);
#elif defined(EMULATOR_TSAN)
    scheduler_fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_fiber_, kNoSync);
#endif
#if defined(EMULATOR_UCONTEXT)
    swapcontext(&scheduler_, &context_);
#else
    cuda_emulator_switch(&scheduler_, saved_);
#endif
#if defined(EMULATOR_ASAN)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  // Fiber to scheduler.
  void yield() {
#if defined(EMULATOR_ASAN)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, scheduler_stack_, scheduler_bytes_);
#elif defined(EMULATOR_TSAN)
    __tsan_switch_to_fiber(scheduler_fiber_, kNoSync);
#endif
#if defined(EMULATOR_UCONTEXT)
    swapcontext(&context_, &scheduler_);
#else
    cuda_emulator_switch(&saved_, scheduler_);
#endif
#if defined(EMULATOR_ASAN)
    __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack_, &scheduler_bytes_);
#endif
  }

 private:
#if defined(EMULATOR_ASAN) || defined(EMULATOR_TSAN)
  static constexpr size_t kStackBytes = 256 * 1024;  // their frames are several times as large
#else
  static constexpr size_t kStackBytes = 64 * 1024;
#endif

  static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  char* stack() const { return memory_ + page(); }

  static void start() {
#if defined(EMULATOR_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack_, &scheduler_bytes_);
#endif
    running_->entry_();
    __builtin_trap();
  }

  void (*entry_)();
  char* memory_;
  inline static Fiber* running_;
#if defined(EMULATOR_UCONTEXT)
  ucontext_t context_;
  inline static ucontext_t scheduler_;
#else
  void* saved_;
  inline static void* scheduler_;
#endif
#if defined(EMULATOR_ASAN)
  inline static const void* scheduler_stack_;
  inline static size_t scheduler_bytes_;
#elif defined(EMULATOR_TSAN)
  static constexpr unsigned kNoSync = 1;
  void* tsan_fiber_;
  inline static void* scheduler_fiber_;
#endif
};

}  // namespace cuda_emulator

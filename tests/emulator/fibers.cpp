// The scheduler of the emulated GPU: blocks one after another, the threads of a block as fibers that run until they
// wait for each other. A kernel's misuse of barriers and warps ends the launch: threads of a block at different
// barriers, lanes that meet with unequal masks or at different lines, masks that name an exited lane or not the caller,
// a deadlock. A shuffle from a lane outside the mask gives a pattern, and shared memory starts with one, so that a use
// of either shows in the result.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda_emulator.hpp"
#include "fiber.hpp"
#include "scheduler.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_emulator {
namespace {

constexpr int kGarbageByte = 0xC7;
constexpr uint64_t kGarbageValue = 0xC7C7C7C7C7C7C7C7u;

enum class State { kReady, kAtBarrier, kAtWarpOp, kExited };

struct Thread {
  Fiber* fiber;
  uint3 index;
  int number, lane, warp;
  State state = State::kReady;
  Location at{};  // where it waits, or last did
  WarpOp op{};    // what it posted there
  unsigned mask = 0;
  uint64_t value = 0, result = 0;
  int source = 0;
};

// Objects that stand for an order of memory. They alternate, so that who is early at the next barrier is not yet
// ordered before those that still leave this one.
struct Order {
  char objects[2];
  unsigned generation = 0;
  char* current() { return &objects[generation & 1]; }
};

struct Warp {
  Thread* lanes;
  int size;
  unsigned waiting = 0, exited = 0;  // lanes
  Thread* latest = nullptr;          // to wait
  Order orders[32];                  // by the first lane of a mask
};

struct FreeDeleter {
  void operator()(void* memory) const {
    Unobserved scope;
    std::free(memory);
  }
};
using Memory = std::unique_ptr<void, FreeDeleter>;

Memory make_shared_memory(size_t bytes) {
  Unobserved scope;
  void* memory = std::malloc(bytes);
  std::memset(memory, kGarbageByte, bytes);
  return Memory(memory);
}

struct Block {
  std::vector<Thread> threads;
  std::vector<int> queue;  // of threads that can run: a ring, as each is in it at most once
  size_t head = 0, queued = 0;
  int live = 0, waiting = 0;
  Reduction reduction{};
  int count = 0, reduced = 0;
  Order barrier_order;
  std::vector<Warp> warps;
  Memory dynamic_memory;
  std::map<const void*, Memory> static_memory;
  size_t shared_bytes = 0;  // all of it
};

std::vector<std::unique_ptr<Fiber>> fibers;
const Launch* current_launch = nullptr;
char launch_started, launch_ended;  // order of memory
bool failed = false;                // the running launch
std::string failure;
Block block;
Thread* self = nullptr;  // the one that runs
uint64_t random_state;   // 0: ascending order

// splitmix64
uint64_t random_below(uint64_t end) {
  uint64_t x = random_state += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (x ^ (x >> 31)) % end;
}

std::string describe(const Thread& t) {
  std::string text = "thread (" + std::to_string(t.index.x) + ", " + std::to_string(t.index.y) + ", " +
                     std::to_string(t.index.z) + ")";
  if (t.state == State::kExited) return text + ", which has exited";
  if (t.at.file == nullptr) return text;
  return text + " at " + t.at.file + ":" + std::to_string(t.at.line);
}

// `other` may be null.
void report(const char* what, const Thread& thread, const Thread* other) {
  failed = true;
  failure = std::string(what) + ": block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
            std::to_string(blockIdx.z) + "), " + describe(thread);
  if (other != nullptr) failure += ", and " + describe(*other);
}

// Called by a CUDA thread, which is not resumed.
[[noreturn]] void fail(const char* what, const Thread* other = nullptr) {
  {
    Unobserved scope;
    report(what, *self, other);
  }
  self->fiber->yield();
  __builtin_trap();
}

void make_ready(Thread& thread) {
  thread.state = State::kReady;
  block.queue[(block.head + block.queued++) % block.queue.size()] = thread.number;
}

Thread& next_thread() {
  const size_t size = block.queue.size();
  int& next = block.queue[block.head];
  if (random_state != 0) std::swap(next, block.queue[(block.head + random_below(block.queued)) % size]);
  block.head = (block.head + 1) % size;
  --block.queued;
  return block.threads[next];
}

void open_barrier() {
  block.reduced = block.reduction == Reduction::kCount ? block.count
                  : block.reduction == Reduction::kAnd ? block.count == block.waiting
                                                       : block.count > 0;
  for (Thread& thread : block.threads) {
    if (thread.state == State::kAtBarrier) make_ready(thread);
  }
  block.waiting = block.count = 0;
  ++block.barrier_order.generation;
}

bool same_place(Location a, Location b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// All lanes of the mask wait: their results.
void complete(Warp& warp, WarpOp op, unsigned mask) {
  uint64_t votes = 0;
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    votes |= uint64_t{warp.lanes[i].value != 0} << i;
  }
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    Thread& lane = warp.lanes[__builtin_ctz(rest)];
    const bool posted = mask >> lane.source & 1;
    lane.result = op == WarpOp::kVote ? votes : posted ? warp.lanes[lane.source].value : kGarbageValue;
    make_ready(lane);
  }
  warp.waiting &= ~mask;
}

// A thread's life. Its fiber serves another thread afterwards.
void fiber_main() {
  for (;;) {
    acquire(&launch_started);
    current_launch->run(current_launch->call);
    release(block.barrier_order.current());
    release(&launch_ended);
    self->state = State::kExited;
    --block.live;
    Warp& warp = block.warps[self->warp];
    warp.exited |= 1u << self->lane;
    for (unsigned rest = warp.waiting; rest != 0; rest &= rest - 1) {
      const Thread& other = warp.lanes[__builtin_ctz(rest)];
      if (other.mask >> self->lane & 1) fail("a mask names a lane that exits", &other);
    }
    if (block.live > 0 && block.waiting == block.live) open_barrier();
    self->fiber->yield();
  }
}

// ThreadSanitizer takes what one fiber does as ordered. So that two blocks can race, they are given different fibers.
size_t fiber_index(uint64_t block_number, int thread, int threads) {
#if defined(EMULATOR_TSAN)
  return (block_number & 1) * threads + (thread + block_number / 2) % threads;
#else
  static_cast<void>(block_number);
  static_cast<void>(threads);
  return thread;
#endif
}

void run_block(uint64_t number, int threads) {
  block = Block();
  block.shared_bytes = current_launch->dynamic_bytes;
  block.dynamic_memory = make_shared_memory(block.shared_bytes);
  block.live = threads;
  block.threads.resize(threads);
  block.queue.resize(threads);
  for (int i = 0; i < threads; ++i) {
    const size_t fiber = fiber_index(number, i, threads);
    while (fibers.size() <= fiber) fibers.push_back(std::make_unique<Fiber>(&fiber_main));
    Thread& thread = block.threads[i];
    thread.fiber = fibers[fiber].get();
    const unsigned n = i;
    thread.index = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
    thread.number = i;
    thread.lane = i % 32;
    thread.warp = i / 32;
    if (thread.lane == 0) block.warps.push_back({&thread, std::min(32, threads - i)});
    make_ready(thread);
  }
  while (block.queued > 0) {
    self = &next_thread();
    threadIdx = self->index;
    self->fiber->resume();
    if (failed) return;
  }
  if (block.live > 0) {
    const auto waits = [](const Thread& thread) { return thread.state != State::kExited; };
    const auto first = std::find_if(block.threads.begin(), block.threads.end(), waits);
    const auto elsewhere = [&](const Thread& thread) { return waits(thread) && !same_place(thread.at, first->at); };
    const auto other = std::find_if(first, block.threads.end(), elsewhere);
    report("deadlock", *first, other == block.threads.end() ? nullptr : &*other);
  }
}

}  // namespace

int lane() { return self->lane; }

void* dynamic_shared() { return block.dynamic_memory.get(); }

void* static_shared(const void* key, size_t bytes) {
  if (block.static_memory.count(key) == 0 && (block.shared_bytes += bytes) > current_launch->shared_limit) {
    fail("more shared memory than a block has");
  }
  Unobserved scope;
  Memory& memory = block.static_memory[key];
  if (memory == nullptr) memory = make_shared_memory(bytes);
  return memory.get();
}

int barrier(Reduction reduction, bool predicate, Location at) {
  self->at = at;
  for (const Thread& other : block.threads) {
    if (other.state != State::kAtBarrier) continue;
    if (!same_place(other.at, at)) fail("divergent barriers", &other);
    break;
  }
  char* order = block.barrier_order.current();
  release(order);
  block.reduction = reduction;
  block.count += predicate;
  self->state = State::kAtBarrier;
  if (++block.waiting == block.live) open_barrier();
  self->fiber->yield();
  acquire(order);
  return block.reduced;
}

uint64_t warp_op(WarpOp op, unsigned mask, uint64_t value, int source, Location at) {
  Thread* const me = self;
  Warp& warp = block.warps[me->warp];
  if (warp.size < 32) mask &= (1u << warp.size) - 1;  // lanes that were never there
  const auto meets = [&](const Thread& other) {
    return other.mask == mask && other.op == op && same_place(other.at, at);
  };
  // Who waits has been compared with all that waited before: one that is equal speaks for them.
  const bool alike = warp.waiting != 0 && (warp.waiting >> warp.latest->lane & 1) && meets(*warp.latest);
  me->at = at;
  me->op = op;
  me->mask = mask;
  me->value = value;
  me->source = source;
  if (!(mask >> me->lane & 1)) fail("the mask doesn't name the calling lane");
  if (mask & warp.exited) fail("the mask names an exited lane", &warp.lanes[__builtin_ctz(mask & warp.exited)]);
  for (unsigned rest = alike ? 0 : warp.waiting; rest != 0; rest &= rest - 1) {
    const Thread& other = warp.lanes[__builtin_ctz(rest)];
    if (!(other.mask & mask)) continue;
    if (other.mask != mask) fail("lanes meet with unequal masks", &other);
    if (!meets(other)) fail("lanes of one mask at different operations", &other);
  }
  Order& group = warp.orders[__builtin_ctz(mask)];
  char* const order = group.current();
  if (op == WarpOp::kSync) release(order);
  me->state = State::kAtWarpOp;
  warp.waiting |= 1u << me->lane;
  warp.latest = me;
  if ((warp.waiting & mask) == mask) {
    ++group.generation;
    complete(warp, op, mask);
  }
  me->fiber->yield();
  if (op == WarpOp::kSync) acquire(order);
  return me->result;
}

std::string run_blocks(const Launch& launch) {
  Unobserved scope;
  current_launch = &launch;
  gridDim = launch.grid;
  blockDim = launch.block;
  failed = false;
  failure.clear();
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; ++i) order[i] = i;
  random_state = launch.seed;
  if (random_state != 0) {
    for (uint64_t i = blocks - 1; i > 0; --i) std::swap(order[i], order[random_below(i + 1)]);
  }
  release(&launch_started);
  for (uint64_t i = 0; i < blocks && !failed; ++i) {
    const uint64_t b = order[i];
    blockIdx = {static_cast<unsigned>(b % gridDim.x), static_cast<unsigned>(b / gridDim.x % gridDim.y),
                static_cast<unsigned>(b / gridDim.x / gridDim.y)};
    run_block(i, static_cast<int>(blockDim.x * blockDim.y * blockDim.z));
  }
  acquire(&launch_ended);
  if (failed) fibers.clear();  // they stopped amid a kernel
  return failure;
}

}  // namespace cuda_emulator

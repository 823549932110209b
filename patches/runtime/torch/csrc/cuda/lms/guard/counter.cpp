// A RecordFunction callback that takes neither inputs nor outputs: most of what a callback costs is
// to hand it these. What is left is per operator, so it counts nanoseconds.

#include <torch/csrc/cuda/lms/guard/counter.h>

#include <torch/csrc/cuda/lms/guard/operator.h>
#include <torch/csrc/cuda/lms/guard/watch.h>

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace torch::cuda::lms {

namespace {

// The operators that one thread is in. Only that thread writes the depth. An operator that ends in
// another thread than it began in makes two of them wrong, and not their sum.
struct Depth {
  std::atomic<int64_t> value{0};
  std::atomic<bool> taken{true};
  Depth* next = nullptr;
};

// All there are, newest first. They are never deleted: the next thread takes that of one that
// ended.
std::atomic<Depth*> depths{nullptr};
thread_local Depth* own = nullptr;

Depth* free_depth() {
  for (Depth* depth = depths.load(std::memory_order_acquire); depth; depth = depth->next) {
    if (!depth->taken.exchange(true, std::memory_order_acq_rel)) {
      return depth;
    }
  }
  auto* const depth = new Depth;
  depth->next = depths.load(std::memory_order_relaxed);
  while (!depths.compare_exchange_weak(depth->next, depth)) { // as the depths themselves
  }
  return depth;
}

Depth& take_depth() {
  struct AtExit {
    ~AtExit() {
      own->taken.store(false, std::memory_order_release);
      own = nullptr;
    }
  };
  own = free_depth();
  static thread_local AtExit at_exit;
  (void)at_exit;
  return *own;
}

inline Depth& depth_of_thread() {
  return C10_LIKELY(own != nullptr) ? *own : take_depth();
}

std::unique_ptr<at::ObserverContext> count_start(const at::RecordFunction& function) {
  std::atomic<int64_t>& depth = depth_of_thread().value;
  // Sequentially consistent, see Watch::phase.
  depth.store(depth.load(std::memory_order_relaxed) + 1);
  if (C10_UNLIKELY(Watch::phase.load() != Watch::Phase::Counting)) {
    Watch::counted_late();
  } else if (C10_UNLIKELY(Operator::needs_watch(function.name()))) {
    Watch::get().begin();
  }
  return nullptr;
}

void count_end(const at::RecordFunction&, at::ObserverContext*) {
  std::atomic<int64_t>& depth = depth_of_thread().value;
  depth.store(depth.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

} // namespace

bool Counter::install() {
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(count_start, count_end).scopes({at::RecordScope::FUNCTION}));
  return true;
}

void Counter::remove() {
  if (handle != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

bool Counter::none_runs() {
  int64_t sum = 0;
  for (const Depth* depth = depths.load(); depth; depth = depth->next) {
    sum += depth->value.load();
  }
  return sum == 0;
}

bool Counter::in_operator() {
  return depth_of_thread().value.load(std::memory_order_relaxed) > 0;
}

} // namespace torch::cuda::lms

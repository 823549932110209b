// A RecordFunction callback that takes neither inputs nor outputs, because passing these is most of
// what a callback costs. The rest is paid by every operator, so nanoseconds matter here.

#include <torch/csrc/cuda/lms/guard/counter.h>

#include <torch/csrc/cuda/lms/guard/operator.h>
#include <torch/csrc/cuda/lms/guard/watch.h>

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace torch::cuda::lms {

namespace {

// How many operators one thread is in. Only that thread writes the value. If an operator ends in
// another thread than it began in, the values of two threads are wrong, but their sum is right.
struct Depth {
  std::atomic<int64_t> value{0};
  std::atomic<bool> taken{true};
  Depth* next = nullptr;
};

// A list of all of them, newest first. They are never deleted. A new thread takes over the one of a
// thread that has ended.
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
  // Sequentially consistent, like the depths themselves.
  while (!depths.compare_exchange_weak(depth->next, depth)) {
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
  Counter::uncount();
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

bool Counter::count() {
  std::atomic<int64_t>& depth = depth_of_thread().value;
  // Sequentially consistent, see Watch::phase.
  depth.store(depth.load(std::memory_order_relaxed) + 1);
  const Watch::Phase phase = Watch::phase.load();
  if (C10_LIKELY(phase == Watch::Phase::Counting || phase == Watch::Phase::Off)) {
    return true;
  }
  uncount();
  return false;
}

void Counter::uncount() {
  std::atomic<int64_t>& depth = depth_of_thread().value;
  depth.store(depth.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

bool Counter::in_operator() {
  return depth_of_thread().value.load(std::memory_order_relaxed) > 0;
}

} // namespace torch::cuda::lms

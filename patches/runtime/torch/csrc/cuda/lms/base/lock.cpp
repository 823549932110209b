#include <torch/csrc/cuda/lms/base/lock.h>

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

namespace {

struct Later {
  void (*function)(void*);
  void* context;
};

// A reference to drop, and the thread that has to: another one may hold the native allocator's
// mutex, and must not take the GIL.
struct Storage {
  const bool* thread; // its t_held
  c10::intrusive_ptr<c10::StorageImpl> reference;
};

using Memory = c10::SmallVector<at::DataPtr, 2>;

// pthreads, because std::condition_variable needs a newer libstdc++ than the one of the oldest
// systems that the wheels support.
struct Shared {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  std::vector<Later> later;
  std::vector<Storage> storages;
  Memory memory;
};

thread_local bool t_held = false;
std::atomic<bool> child{false};

Shared& shared();

// Takes the mutex before a fork: if another thread held it then, it would stay locked in the child.
void before_fork() {
  if (!t_held) {
    pthread_mutex_lock(&shared().mutex);
  }
}

void after_fork_in_parent() {
  if (!t_held) {
    pthread_mutex_unlock(&shared().mutex);
  }
}

void after_fork_in_child() {
  child.store(true, std::memory_order_release);
  after_fork_in_parent();
}

// Never destroyed: storages die after static destructors have run.
Shared& shared() {
  static auto* const instance = [] {
    auto* const made = new Shared;
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  return *instance;
}

void take() {
  pthread_mutex_lock(&shared().mutex);
  t_held = true;
}

void give() {
  t_held = false;
  pthread_mutex_unlock(&shared().mutex);
}

} // namespace

Lock::Lock() {
  take();
}

Lock::~Lock() {
  Shared& s = shared();
  // These calls may register further calls.
  while (!s.later.empty()) {
    std::vector<Later> later;
    later.swap(s.later);
    for (const Later& call : later) {
      call.function(call.context);
    }
  }
  const auto own =
      std::stable_partition(s.storages.begin(), s.storages.end(), [](const Storage& storage) {
        return storage.thread != &t_held;
      });
  const std::vector<Storage> storages(
      std::make_move_iterator(own), std::make_move_iterator(s.storages.end()));
  s.storages.erase(own, s.storages.end());
  const Memory memory = std::move(s.memory);
  s.memory.clear();
  give();
  // The storages and the memory are released here, after the unlock. If a storage's only other
  // reference is its Python object, dropping ours takes the GIL; freeing memory takes the native
  // allocator's mutex.
}

bool Lock::held() {
  return t_held;
}

Lock::Pause::Pause() : held_(t_held) {
  if (held_) {
    const Memory memory = std::move(shared().memory);
    shared().memory.clear();
    give();
  }
}

Lock::Pause::~Pause() {
  if (held_) {
    take();
  }
}

void Lock::wait() {
  TORCH_INTERNAL_ASSERT(t_held);
  t_held = false;
  pthread_cond_wait(&shared().changed, &shared().mutex);
  t_held = true;
}

void Lock::notify() {
  pthread_cond_broadcast(&shared().changed);
}

void Lock::later(void (*function)(void*), void* context) {
  shared().later.push_back({function, context});
}

void Lock::drop_later(c10::intrusive_ptr<c10::StorageImpl> storage) {
  if (storage) {
    shared().storages.push_back({&t_held, std::move(storage)});
  }
}

void Lock::drop_later(at::DataPtr memory) {
  if (memory) {
    shared().memory.push_back(std::move(memory));
  }
}

bool Lock::forked() {
  return child.load(std::memory_order_acquire);
}

} // namespace torch::cuda::lms

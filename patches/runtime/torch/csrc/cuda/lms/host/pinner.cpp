#include <torch/csrc/cuda/lms/host/pinner.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <c10/core/thread_pool.h>
#include <c10/cuda/CUDAGuard.h>

#include <condition_variable>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace torch::cuda::lms {

class Pinner::Worker {
 public:
  Worker() : pool_(1) {
    const std::lock_guard<std::mutex> lock(exit().mutex);
    exit().workers.insert(this);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    const std::lock_guard<std::mutex> lock(exit().mutex);
    exit().workers.erase(this);
  }

  void start(size_t bytes, c10::DeviceIndex device, int node) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ready_ = false;
    }
    pool_.run([this, bytes, device, node] {
      try {
        const c10::cuda::CUDAGuard guard(device);
        // Captures of other threads do not forbid CUDA calls in this thread then.
        const compat::RelaxedCapture relaxed;
        slab_ = std::make_unique<Slab>(bytes, node);
      } catch (const std::exception&) {
        slab_.reset(); // who needs the memory pins it, and gets the error
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      ready_ = true;
      changed_.notify_all();
    });
  }

  // The pool's own waitWorkComplete() wakes only one of the threads that wait.
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ready_; });
  }

  bool ready() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ready_;
  }

  std::unique_ptr<Slab> finish() {
    return std::move(slab_);
  }

 private:
  // At process exit, waits for all workers. The runtime is never destroyed, and a thread that is
  // inside the driver when the process unloads it would crash.
  struct Exit {
    std::mutex mutex;
    std::unordered_set<Worker*> workers;
    ~Exit() {
      if (Lock::forked()) {
        return; // the workers' threads are the parent's
      }
      const std::lock_guard<std::mutex> lock(mutex);
      for (Worker* const worker : workers) {
        worker->pool_.waitWorkComplete();
      }
    }
  };
  static Exit& exit() {
    static Exit instance;
    return instance;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false; // until then, the slab belongs to the pool's thread
  std::unique_ptr<Slab> slab_;
  c10::ThreadPool pool_; // last member, so it is destroyed first: it waits for its thread
};

Pinner::Pinner(c10::DeviceIndex device, int node) : device_(device), node_(node) {}

Pinner::~Pinner() = default;

void Pinner::start(size_t bytes) {
  if (!worker_) {
    worker_ = std::make_unique<Worker>();
  }
  bytes_ = Slab::rounded(bytes);
  worker_->start(bytes_, device_, node_);
}

void Pinner::wait() const {
  if (!ready()) {
    worker_->wait();
  }
}

// In a child, the worker's thread is the parent's.
bool Pinner::ready() const {
  return !worker_ || Lock::forked() || worker_->ready();
}

std::unique_ptr<Slab> Pinner::finish() {
  bytes_ = 0;
  return Lock::forked() ? nullptr : worker_->finish();
}

} // namespace torch::cuda::lms

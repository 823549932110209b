#include <torch/csrc/cuda/lms/host/pinner.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <c10/core/thread_pool.h>
#include <c10/cuda/CUDAGuard.h>

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
    pool_.run([this, bytes, device, node] {
      try {
        const c10::cuda::CUDAGuard guard(device);
        // Captures of other threads do not forbid CUDA calls in this thread then.
        const compat::RelaxedCapture relaxed;
        slab_ = std::make_unique<Slab>(bytes, node);
      } catch (const std::exception&) {
        slab_.reset(); // a caller that needs the memory pins it itself, and gets the error
      }
    });
  }

  std::unique_ptr<Slab> finish() {
    pool_.waitWorkComplete();
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

  std::unique_ptr<Slab> slab_; // belongs to the pool's thread until waitWorkComplete()
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

std::unique_ptr<Slab> Pinner::finish() {
  if (bytes_ == 0) {
    return nullptr;
  }
  bytes_ = 0;
  if (Lock::forked()) {
    return nullptr; // the worker's thread is the parent's
  }
  return worker_->finish();
}

} // namespace torch::cuda::lms

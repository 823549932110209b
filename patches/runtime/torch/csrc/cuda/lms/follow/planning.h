#pragma once

#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <atomic>
#include <thread>

namespace torch::cuda::lms {

// Makes one plan at a time, in its own thread, which takes no lock. Used under the LMS mutex.
class Planning {
 public:
  Planning() = default;
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;
  ~Planning();

  // Whether a plan is being made, or was made and has not been taken.
  bool busy() const {
    return thread_.joinable();
  }
  bool done() const {
    return busy() && done_.load(std::memory_order_acquire);
  }

  // Must not be called while it is busy.
  // With `compression`, blocks with a share are compressed only if the program would wait for
  // copies otherwise.
  void start(plan::Trace trace, const plan::Machine& machine, bool compression);

  // Waits for the plan and returns it. Must only be called while it is busy.
  plan::Plan take();

 private:
  std::thread thread_;
  std::atomic<bool> done_{false};
  bool compression_ = false; // these four belong to the thread until it is done
  plan::Trace trace_;
  plan::Machine machine_;
  plan::Plan plan_;
};

} // namespace torch::cuda::lms

#include <torch/csrc/cuda/lms/follow/planning.h>

#include <torch/csrc/cuda/lms/plan/planner.h>

#include <exception>
#include <utility>

namespace torch::cuda::lms {

Planning::~Planning() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Planning::start(plan::Trace trace, const plan::Machine& machine, bool compression) {
  trace_ = std::move(trace);
  machine_ = machine;
  compression_ = compression;
  done_ = false;
  thread_ = std::thread([this] {
    try {
      plan_ = compression_ ? plan::plan_with_compression(trace_, machine_)
                           : plan::plan(trace_, machine_);
    } catch (const std::exception& error) {
      plan_ = plan::Plan();
      plan_.problem = error.what();
    }
    done_.store(true, std::memory_order_release);
  });
}

plan::Plan Planning::take() {
  thread_.join();
  return std::move(plan_);
}

} // namespace torch::cuda::lms

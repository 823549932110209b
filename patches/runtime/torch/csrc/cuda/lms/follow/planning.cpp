#include <torch/csrc/cuda/lms/follow/planning.h>

#include <torch/csrc/cuda/lms/plan/planner.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace torch::cuda::lms {

Planning::~Planning() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Planning::start(
    plan::Trace trace,
    const plan::Machine& machine,
    bool compression,
    std::optional<Blocks> blocks) {
  trace_ = std::move(trace);
  machine_ = machine;
  compression_ = compression;
  blocks_ = std::move(blocks);
  done_ = false;
  thread_ = std::thread([this] {
    try {
      make();
    } catch (const std::exception& error) {
      plan_ = plan::Plan();
      plan_.problem = error.what();
    }
    done_.store(true, std::memory_order_release);
  });
}

plan::Plan Planning::plan() const {
  return compression_ ? plan::plan_with_compression(trace_, machine_)
                      : plan::plan(trace_, machine_);
}

void Planning::make() {
  constexpr int kSteps = 8; // of a hundredth of the limit each
  places_ = Places();
  const int64_t limit = machine_.limit;
  int64_t room = 0;
  if (blocks_) {
    const int64_t besides = trace_.unmanaged + blocks_->lives.without_place(blocks_->stay);
    // Places are somewhat larger than their blocks. A plan leaves more than that of what PyTorch
    // may take.
    room = std::min(limit + limit / 200 - besides, blocks_->most);
    machine_.limit = std::min(limit, room + besides);
  }
  plan_ = plan();
  if (!blocks_) {
    return;
  }
  for (int step = 0; step <= kSteps && plan_.problem.empty(); ++step) {
    places_ =
        Places(blocks_->lives, plan_.moves, blocks_->links, blocks_->stay, blocks_->rest, room);
    if (places_) {
      return;
    }
    machine_.limit -= limit / 100;
    plan_ = plan();
  }
  if (machine_.limit != limit) {
    machine_.limit = limit;
    plan_ = plan();
  }
}

std::pair<plan::Plan, Places> Planning::take() {
  thread_.join();
  return {std::move(plan_), std::move(places_)};
}

} // namespace torch::cuda::lms

#include <torch/csrc/cuda/lms/guard/crossing.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/base/published.h>
#include <torch/csrc/cuda/lms/block/registry.h>

namespace torch::cuda::lms {

namespace {

using Passes = std::unordered_map<int64_t, std::weak_ptr<Crossing>>;

Passes& passes() {
  static auto* const instance = new Passes;
  return *instance;
}

Published<bool> there_are{false};

} // namespace

bool Crossing::any() {
  return there_are;
}

std::shared_ptr<Crossing> Crossing::find(int64_t pass) {
  const auto found = passes().find(pass);
  return found == passes().end() ? nullptr : found->second.lock();
}

std::shared_ptr<Crossing> Crossing::make(int64_t pass) {
  const std::shared_ptr<Crossing> made(new Crossing(pass));
  passes()[pass] = made;
  there_are = true;
  return made;
}

Crossing::~Crossing() {
  const Lock lock;
  passes().erase(pass_);
  there_are = !passes().empty();
  for (const auto& entry : blocks_) {
    entry.second->registry.leave(*entry.second, Reason::Operator);
  }
}

void Crossing::leave_for(const void* consumer, Block& block) {
  block.registry.stay(block, Reason::Operator);
  blocks_.emplace(consumer, &block);
}

std::vector<Block*> Crossing::arrived(const void* consumer) {
  std::vector<Block*> blocks;
  const auto range = blocks_.equal_range(consumer);
  for (auto entry = range.first; entry != range.second; ++entry) {
    blocks.push_back(entry->second);
  }
  blocks_.erase(range.first, range.second);
  return blocks;
}

} // namespace torch::cuda::lms

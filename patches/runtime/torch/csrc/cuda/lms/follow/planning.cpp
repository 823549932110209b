#include <torch/csrc/cuda/lms/follow/planning.h>

#include <torch/csrc/cuda/lms/plan/plain.h>
#include <torch/csrc/cuda/lms/plan/planner.h>
#include <torch/csrc/cuda/lms/plan/replay.h>
#include <torch/csrc/cuda/lms/plan/schedule.h>

#include <algorithm>
#include <exception>
#include <limits>
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
      if (compression_) {
        plan::copy_plainly(trace_, machine_, plan_, places_.handovers());
      }
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
  int64_t room = 0; // bytes
  if (blocks_) {
    const int64_t besides = without_place();
    room = room_beside(besides);
    machine_.limit = std::min(limit, room + besides);
  }
  plan_ = plan();
  if (!blocks_) {
    return;
  }
  for (int step = 0; step <= kSteps && plan_.problem.empty(); ++step) {
    const bool found =
        step == 0 ? find_places(room, {0, 0.125, 0.25, 0.5}) : find_places(room, {0.25});
    if (found) {
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

// Most bytes of what has no place. It is in pages that are not full. If another one did not fit
// beside the places, the native allocator would give back all free memory, and the places with it.
int64_t Planning::without_place() const {
  constexpr int64_t kSpare = int64_t(4) << 20; // bytes
  return trace_.unmanaged + blocks_->lives.without_place(blocks_->stay) +
         std::min(machine_.limit / 64, kSpare);
}

// Bytes for places.
int64_t Planning::room_beside(int64_t besides) const {
  constexpr int64_t kPages = 8; // with fewer, part of one is too much to leave unused
  // Places are somewhat larger than their blocks. A plan leaves more than that of what PyTorch may
  // take.
  int64_t room = machine_.limit + machine_.limit / 200 - besides;
  const int64_t pages = (blocks_->memory - besides) / blocks_->page;
  if (blocks_->page > 1 && pages >= kPages && machine_.limit <= blocks_->memory) {
    room = pages * blocks_->page; // all of a page is taken in any case
  }
  return std::min(room, blocks_->most);
}

// Of the plan's blocks. Where drops come earlier, places are found more easily, but an operator
// that gets such memory may have to wait for a copy. Returns whether there are any within `room`
// bytes.
bool Planning::find_places(int64_t room, const std::vector<double>& parts) {
  constexpr double kEnough = 1.003; // of the seconds that it would take if no memory had a place
  const std::vector<plan::Move> moves = plan_.moves;
  const double enough = kEnough * plan_.prediction.seconds;
  double least = std::numeric_limits<double>::infinity();
  for (const double part : parts) {
    std::vector<plan::Move> earlier = plan::earlier_drops(moves, part);
    const Blocks& blocks = *blocks_;
    Places places(blocks.lives, earlier, blocks.links, blocks.stay, blocks.rest, room);
    if (!places) {
      continue;
    }
    plan::Replay replay =
        plan::replay(trace_, machine_, earlier, plan::kIterations, places.handovers());
    if (replay.valid() && replay.prediction.seconds < least) {
      least = replay.prediction.seconds;
      plan_.moves = std::move(earlier);
      plan_.prediction = std::move(replay.prediction);
      places_ = std::move(places);
    }
    if (least <= enough) {
      break;
    }
  }
  return bool(places_);
}

std::pair<plan::Plan, Places> Planning::take() {
  thread_.join();
  return {std::move(plan_), std::move(places_)};
}

} // namespace torch::cuda::lms

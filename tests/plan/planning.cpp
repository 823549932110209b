// Plans with places for ctypes: arrays that the caller owns.

#include <torch/csrc/cuda/lms/follow/planning.h>
#include <torch/csrc/cuda/lms/record/iteration.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

using namespace torch::cuda::lms;

// Of each event its kind, block and value. `rate` is that of both directions, in bytes per second.
// Returns the bytes of the places, or -1 if there is no plan. `found` gets the bytes that are
// copied to the host, and how many operators all blocks together stay on the device after their
// last use.
extern "C" int64_t lms_plan_with_places(
    int64_t count,
    const int64_t* numbers,
    int64_t limit,
    double rate,
    bool places,
    int64_t* found) {
  std::vector<TraceEvent> events(static_cast<size_t>(count));
  for (TraceEvent& event : events) {
    event.kind = static_cast<TraceEvent::Kind>(*numbers++);
    event.block = static_cast<uint32_t>(*numbers++);
    event.value = static_cast<uint64_t>(*numbers++);
  }
  plan::Machine machine;
  machine.limit = limit;
  machine.out_rate = machine.in_rate = rate;
  std::optional<Planning::Blocks> blocks;
  if (places) {
    blocks = Planning::Blocks{Lives(events), {}, {}, {}, INT64_MAX, limit, 1};
  }
  Planning planning;
  planning.start(iteration(events, {"operator"}, 0), machine, false, std::move(blocks));
  const auto [plan, where] = planning.take();
  if (!plan.problem.empty()) {
    return -1;
  }
  found[0] = plan.prediction.bytes_out;
  found[1] = 0;
  for (const plan::Move& move : plan.moves) {
    found[1] += move.drop_before - move.last_use;
  }
  return static_cast<int64_t>(where.bytes());
}

#pragma once

#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace torch::cuda::lms::plan {

enum class Fault : uint8_t {
  None,
  Malformed, // the order of a move's own places
  Limit, // an operator or a fetch gets no memory, however long it waits
  Absent, // an operator uses, or a move copies or drops, what is not on the device
  Present, // a fetch of what is on the device
  Untrue, // a drop without a true copy on the host
};

// Memory that goes from one block to another, because blocks have places: who gets it waits until
// it is free, although other memory may be free already.
struct Handover {
  static constexpr size_t kNobody = SIZE_MAX;

  size_t from = kNobody; // the move that gives it up
  size_t to = kNobody; // the move that fetches into it; kNobody: an operator allocates it
  Place place = Move::kNone; // of that operator
};

// What happens when a plan is played, iteration after iteration, until iterations take the same
// time. Operators run in order; each link makes its transfers in the order of their issue; an
// operator waits until its blocks have arrived and its memory is free, a fetch for its memory
// alone. A fetch has its memory from its issue on, a dropped block until its copy has ended.
struct Replay {
  Fault fault = Fault::None;
  Place place = Move::kNone; // of the fault
  std::string message; // of the fault
  Prediction prediction;
  // For each move, the operator before which its memory was free for others.
  std::vector<Place> freed;

  bool valid() const {
    return fault == Fault::None;
  }
};

constexpr int kIterations = 12; // after which times have most likely settled

Replay replay(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Move>& moves,
    int iterations = kIterations,
    const std::vector<Handover>& handovers = {});

} // namespace torch::cuda::lms::plan

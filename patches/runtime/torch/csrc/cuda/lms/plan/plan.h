#pragma once

#include <torch/csrc/cuda/lms/plan/bound.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch::cuda::lms::plan {

// One absence of a block from the device, in each iteration. Places count on past the end of the
// iteration in which it begins.
struct Move {
  static constexpr Place kNone = -1;

  uint32_t block = 0;
  Place copy_after = kNone; // at its end the copy to the host starts; at most `last_use`
  bool copies = true; // false: the host's copy is true already
  Place drop_before = 0; // before this operator the memory is given up, behind the copy
  Place fetch_before = kNone; // before this operator the fetch is issued; kNone: never
  Place needed_at = kNone; // the operator that uses it next; kNone: none does
  bool packs = true; // false: the copy is as it is, although the block shrinks
  Place last_use = kNone; // before the absence; kNone: nothing uses the block

  bool returns() const {
    return needed_at != kNone;
  }
  // The order in which copies behind the same operator are issued.
  std::pair<Place, Place> urgency() const {
    return {last_use, needed_at};
  }
};

// Why an operator did not start when the one before it had ended.
enum class Cause : uint8_t {
  None,
  Arrival, // a block was not there yet
  Memory, // memory was not free yet
};

// What happens to a block in an iteration.
struct Movement {
  enum class Kind : uint8_t {
    Out, // it is copied to the host
    In, // it is copied to the device
    Drop, // its memory on the device is free for others: `begin` is `end`
  };

  Kind kind = Kind::Out;
  uint32_t block = 0;
  Place place = 0; // the operator at which it was issued
  double begin = 0; // seconds from the iteration's beginning; may be after its end
  double end = 0; // the same
};

// What is expected of an iteration in the steady state.
struct Prediction {
  double seconds = 0; // of one iteration
  double stall_seconds = 0; // of it, in which no operator ran
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  int64_t peak_bytes = 0; // with the unmanaged ones
  std::vector<double> starts; // of each operator, seconds from the iteration's beginning
  std::vector<double> stalls; // seconds before each operator
  std::vector<Cause> causes; // of each stall
  std::vector<int64_t> curve; // bytes in use or promised at each operator's start
  std::vector<Movement> movements; // in the order of their issue
};

struct Plan {
  // Nothing could be planned; says why.
  std::string problem;
  // LMS is not necessary: everything fits.
  bool fits = false;
  // An operator that needs more than the limit on its own: its place and bytes; kNone if none.
  Place infeasible = Move::kNone;
  int64_t infeasible_bytes = 0;

  std::vector<Move> moves; // ordered by copy_after; behind one operator, as copies are issued
  bool compressed = true; // it counts on each block's share; otherwise all bytes are copied
  Prediction prediction;
  Bound bound;
};

} // namespace torch::cuda::lms::plan

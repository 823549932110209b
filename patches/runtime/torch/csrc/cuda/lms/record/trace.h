#pragma once

#include <cstdint>

namespace torch::cuda::lms {

// One event of a trace, in the order in which the host issued the work.
struct TraceEvent {
  enum class Kind : uint8_t {
    // An operator, or an autograd node, begins to use storages. `name` is its name, `value` the
    // host's time in nanoseconds since the recording began.
    Operator,
    // A block's storage was allocated. `value` is its size in bytes.
    Allocated,
    // The block was there before the recording. `value` is its size in bytes.
    Known,
    // The operator reads the block, or may write it, too. The block stays until the operator ends.
    Read,
    Written,
    // The block's storage is gone.
    Freed,
    // An iteration has ended.
    Step,
    // `value` is the device's time in nanoseconds at which the work before this event was done, on
    // the stream that was current. It counts from the recording's first mark.
    Mark,
  };

  uint64_t value = 0;
  uint32_t block = 0; // its number in the trace; 0 where the event is not about a block
  uint16_t name = 0; // an index of the trace's names
  Kind kind = Kind::Step;
  uint8_t unused = 0;
};

static_assert(sizeof(TraceEvent) == 16, "lms.py reads arrays of them");

} // namespace torch::cuda::lms

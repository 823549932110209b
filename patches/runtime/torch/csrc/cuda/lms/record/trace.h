#pragma once

#include <cstdint>

namespace torch::cuda::lms {

// One event of a trace. The events are in the order in which the host issued the work.
struct TraceEvent {
  enum class Kind : uint8_t {
    // An operator or an autograd node starts to use storages. `name` is its name, and `value` is
    // the host's time in nanoseconds since the start of the recording.
    Operator,
    // A block's storage was allocated. `value` is its size in bytes.
    Allocated,
    // The block existed before the recording. `value` is its size in bytes.
    Known,
    // The operator reads the block, or may also write it. The block stays on the device until the
    // operator ends.
    Read,
    Written,
    // The block's storage was freed.
    Freed,
    // An iteration has ended.
    Step,
    // `value` is the device's time, in nanoseconds since the recording's first mark, at which the
    // work before this event was done on the stream that was current.
    Mark,
    // The stream starts to wait for a transfer, or the host to look for memory, and has done so: no
    // operator ran between these two events. The second is left out if that took no time. `value`
    // is a time as that of a mark.
    Stalled,
    Resumed,
  };

  uint64_t value = 0;
  uint32_t block = 0; // its number in the trace; 0 if the event is not about a block
  uint16_t name = 0; // an index of the trace's names
  Kind kind = Kind::Step;
  uint8_t unused = 0;
};

static_assert(sizeof(TraceEvent) == 16, "torch.cuda.lms reads arrays of them");

} // namespace torch::cuda::lms

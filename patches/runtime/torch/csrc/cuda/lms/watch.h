#pragma once

#include <atomic>
#include <cstddef>

namespace torch::cuda::lms {

// When the guard looks at operators. To hand it their inputs and outputs costs PyTorch several
// times what it costs to say that one runs, so while a device is far from its limit operators are
// only counted (counter.h):
//
//   Off --> Counting --> Settling --> Watching
//    ^          |           |  ^         |
//    +----------+-----------+--|---------+
//                              +---------+ (an operator was counted that should have been seen)
//
// Counting: nothing moves. Settling: from now on every operator is seen that begins, but some that
// were only counted still run, on storages that nobody knows of; nothing moves. Watching: they have
// ended, the device has done their work, and what operators have been seen to use may move. What
// none has used since is as what was there before LMS was turned on.
class Watch {
 public:
  enum class Phase { Off, Counting, Settling, Watching };

  // Changed with the LMS mutex held. Sequentially consistent, as are the counts: a thread counts
  // its operator and then reads the phase; who ends Settling has set that and then reads the
  // counts; and one of them must see the other.
  static std::atomic<Phase> phase;

  // LMS is turned on, and off. With the mutex held.
  static void start(bool at_once);
  static void stop();

  // The guard looks at every operator from now on. Takes the mutex, if need be.
  static void begin();

  static bool counting() {
    return phase.load() == Phase::Counting;
  }

  // Whether storages may be paged out. Waits for the devices when Settling ends. With the mutex
  // held.
  static bool settled();

  // So many bytes in use, of the automatic limit, call for a look. Until then there is room for
  // whatever runs at that moment, and what no operator is seen to use again is little.
  static size_t threshold(size_t limit) {
    return limit / 20;
  }

  // An operator was counted although the guard looks at them: its thread had read PyTorch's list of
  // callbacks just before that changed. Until it ends everything stays where it can reach it.
  static void counted_late();
};

} // namespace torch::cuda::lms

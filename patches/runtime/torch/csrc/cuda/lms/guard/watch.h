#pragma once

#include <torch/csrc/cuda/lms/room/attention.h>

#include <atomic>

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
// Off: LMS is off. Once it was on, operators are counted all the same, because those that run when
// it is turned on again use storages that nobody knows of. Counting: nothing moves. Settling: from
// now on every operator is seen that begins, but some that were only counted still run; nothing
// moves. Watching: they have ended, the device has done their work, and what operators have been
// seen to use may move. What none has used since is as what was there before LMS was turned on.
class Watch : public Attention {
 public:
  static Watch& get();

  enum class Phase { Off, Counting, Settling, Watching };

  // Changed with the LMS mutex held. Sequentially consistent, as are the counts: a thread counts
  // its operator and then reads the phase; who ends Settling has set that and then reads the
  // counts; and one of them must see the other.
  static std::atomic<Phase> phase;

  // LMS is turned on, and off. With the mutex held. Before it is turned off everything is brought
  // back, which pauses the mutex: from leave() on nothing is paged out, and stay() takes that back.
  void start(bool at_once);
  void leave();
  void stay();
  void stop();

  // The guard looks at every operator from now on. Takes the mutex, if need be.
  void begin() override;

  bool counting() const override {
    return phase.load() == Phase::Counting;
  }

  // Waits for the devices when Settling ends, and pauses the mutex.
  bool settled() override;

  // An operator was counted although the guard looks at them: its thread had read PyTorch's list of
  // callbacks just before that changed. Until it ends everything stays where it can reach it.
  static void counted_late();

 private:
  Watch() = default;

  bool counter_ = false; // operators are counted
  bool leaving_ = false;
};

} // namespace torch::cuda::lms

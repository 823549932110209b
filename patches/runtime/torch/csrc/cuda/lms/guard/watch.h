#pragma once

#include <torch/csrc/cuda/lms/room/attention.h>

#include <atomic>

namespace torch::cuda::lms {

// Decides when the guard watches operators. If a callback gets the inputs and outputs of operators,
// it costs PyTorch several times as much as a callback without them. Therefore operators are only
// counted (counter.h) while a device is far from its limit:
//
//   Off --> Counting --> Settling --> Watching
//    ^          |           |  ^         |
//    +----------+-----------+--|---------+
//                              +---------+ (an operator was counted that should have been seen)
//
// Off: LMS is off. If it was on before, operators are still counted: when LMS is turned on again,
// running operators use storages that LMS does not know.
//
// Counting: nothing is moved.
//
// Settling: every operator that begins is seen, but operators that were only counted may still run.
// Nothing is moved.
//
// Watching: those operators have ended, and the device has finished their work. Storages that
// operators have been seen to use may be moved. Storages that no operator has used since are
// treated like those from before LMS was turned on.
class Watch : public Attention {
 public:
  static Watch& get();

  enum class Phase { Off, Counting, Settling, Watching };

  // Only changed with the LMS mutex held. Sequentially consistent, like the counts. A thread first
  // counts its operator and then reads the phase. The thread that ends Settling has first set the
  // phase and then reads the counts. So at least one of them sees the other.
  static std::atomic<Phase> phase;

  // start() and stop() are called when LMS is turned on and off, with the mutex held. Before LMS is
  // turned off, everything is paged in, which pauses the mutex: from leave() on nothing is paged
  // out, and stay() cancels this.
  void start(bool at_once);
  void leave();
  void stay();
  void stop();

  // The guard watches every operator from now on. Takes the mutex if it is not held.
  void begin() override;

  bool counting() const override {
    return phase.load() == Phase::Counting;
  }

  // At the end of Settling, waits for the devices and pauses the mutex.
  bool settled() override;

  // Called when an operator was counted although the guard watches: its thread had read PyTorch's
  // list of callbacks just before the list changed. Pages in everything, and nothing is paged out
  // until the operator has ended.
  static void counted_late();

 private:
  Watch() = default;

  bool counter_ = false; // whether operators are counted
  bool leaving_ = false;
};

} // namespace torch::cuda::lms

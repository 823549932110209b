#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace torch::cuda::lms {

// Finds out how many steps make up one iteration. A program can have several optimizers, even one
// for each parameter, and each ends a step. Steps that take turns belong to one iteration; a step
// that follows one of its own kind is an iteration by itself.
class Period {
 public:
  // Notes what the program did in one step: a hash of its events, how many there were, and whether
  // the step before used some of its blocks. Optimizers of parameters of the same size do the same
  // with other blocks. Returns whether steps() has changed.
  bool add(uint64_t hash, size_t events, bool same_blocks);

  // Notes that an iteration of several steps has ended, and whether it was known. If several were
  // not, each step is taken for an iteration again. Returns whether steps() has changed.
  bool ended(bool known);

  // Number of steps of an iteration.
  size_t steps() const {
    return steps_;
  }

 private:
  bool repeats(size_t period) const;

  static constexpr size_t kMost = 512; // steps
  static constexpr size_t kOften = 3; // so many iterations have to be the same
  static constexpr size_t kEvents = 40'000; // of an iteration of several steps
  static constexpr unsigned kUnknown = 4; // iterations in a row

  struct Step {
    uint64_t hash;
    size_t events;
  };

  std::deque<Step> history_; // the newest last
  size_t steps_ = 1;
  size_t least_ = 12; // steps that have to take turns; more after they turned out not to
  unsigned unknown_ = 0;
};

} // namespace torch::cuda::lms

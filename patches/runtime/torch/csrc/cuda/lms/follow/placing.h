#pragma once

#include <torch/csrc/cuda/lms/follow/trial.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace torch::cuda::lms {

// Whether the blocks of an iteration's plans have places (places.h). They have none as long as no
// request fails, because to give a block its place takes the host some time. Places are given up if
// there are none, if they are lost again and again, or if iterations take longer with them.
class Placing {
 public:
  bool wanted() const {
    return state_ == State::Tried || state_ == State::Kept;
  }

  // An iteration took this number of seconds with a plan, with places or without, and moved blocks
  // in this way. `failed` says whether a request failed at first. Returns whether plans are of
  // another kind from now on.
  bool took(Trial::Way way, double seconds, bool with_places, bool failed) {
    if (!with_places) {
      double& least = without_[static_cast<size_t>(way)];
      least = std::min(least, seconds);
      if (state_ == State::Unknown && failed) {
        state_ = State::Tried;
        return true;
      }
    } else if (state_ == State::Tried && (iterations_ == 0 || way == way_)) {
      way_ = way;
      with_ = std::min(with_, seconds);
      if (++iterations_ == kIterations) {
        const double without = without_[static_cast<size_t>(way)];
        state_ = with_ <= without ? State::Kept : State::GivenUp;
        return state_ == State::GivenUp;
      }
    }
    return false;
  }

  // There are no places. Returns as took() does.
  bool none() {
    if (!wanted()) {
      return false;
    }
    state_ = State::GivenUp;
    return true;
  }

  // The memory of the places is not there, or not there any more. Returns whether it may be taken
  // once more.
  bool lost() {
    return ++losses_ <= kLosses;
  }

  // Bytes that places may have.
  size_t most() const {
    return most_;
  }
  // Memory for places that have this number of bytes could not be had. There is memory for `left`
  // bytes in one piece.
  void too_large(size_t bytes, size_t left) {
    most_ = std::min(left, bytes - 1);
  }

 private:
  enum class State { Unknown, Tried, Kept, GivenUp };

  // With places, whose least time counts: no more than a trial has of one way, because a way that
  // compresses says nothing about one that copies.
  static constexpr unsigned kIterations = Trial::kIterations;
  static constexpr unsigned kLosses = 4;
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  State state_ = State::Unknown;
  std::array<double, 3> without_{kUnknown, kUnknown, kUnknown}; // seconds, the least, by way
  double with_ = kUnknown; // seconds, the least
  Trial::Way way_ = Trial::Way::Copy; // of the iterations with places
  unsigned iterations_ = 0; // with places
  unsigned losses_ = 0;
  size_t most_ = INT64_MAX;
};

} // namespace torch::cuda::lms

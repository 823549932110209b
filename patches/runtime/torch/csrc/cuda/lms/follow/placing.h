#pragma once

#include <algorithm>
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

  // An iteration took this number of seconds with a plan, with places or without. `failed` says
  // whether a request failed at first. Returns whether plans are of another kind from now on.
  bool took(double seconds, bool with_places, bool failed) {
    if (!with_places) {
      without_ = std::min(without_, seconds);
      if (state_ == State::Unknown && failed) {
        state_ = State::Tried;
        return true;
      }
    } else if (state_ == State::Tried) {
      with_ = std::min(with_, seconds);
      if (++iterations_ == kIterations) {
        state_ = with_ <= without_ ? State::Kept : State::GivenUp;
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

 private:
  enum class State { Unknown, Tried, Kept, GivenUp };

  static constexpr unsigned kIterations = 4; // with places, whose least time counts
  static constexpr unsigned kLosses = 4;
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  State state_ = State::Unknown;
  double without_ = kUnknown; // seconds, the least
  double with_ = kUnknown;
  unsigned iterations_ = 0; // with places
  unsigned losses_ = 0;
};

} // namespace torch::cuda::lms

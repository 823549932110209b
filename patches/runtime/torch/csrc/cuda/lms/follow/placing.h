#pragma once

#include <torch/csrc/cuda/lms/follow/median.h>
#include <torch/csrc/cuda/lms/follow/trial.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch::cuda::lms {

// Whether the blocks of an iteration's plans have places (places.h). They have none until free
// memory is in pieces in half of the last iterations, because to give a block its place takes the
// host some time. Places are given up if there are none, if they are lost again and again, or if
// iterations take longer with them. What is faster in one way of moving blocks may be slower in
// another one, so they are compared once more if another way is kept.
class Placing {
 public:
  bool wanted() const {
    return state_ == State::Tried || state_ == State::Kept;
  }

  // Iterations move blocks in this way from now on. Returns whether plans have no places for a
  // while, to be compared.
  bool doubt(Trial::Way kept) {
    if (state_ != State::Kept || kept == way_) {
      return false;
    }
    state_ = State::Doubted;
    way_ = kept;
    without_[static_cast<size_t>(kept)].clear();
    return true;
  }
  bool doubted() const {
    return state_ == State::Doubted;
  }

  // An iteration took this number of seconds with a plan, with places or without, and moved blocks
  // in this way. `in_pieces` says whether a request failed at first, or blocks were moved so that
  // it did not. Returns whether plans are of another kind from now on.
  bool took(Trial::Way way, double seconds, bool with_places, bool in_pieces) {
    Seconds& with = with_[static_cast<size_t>(way)];
    Seconds& without = without_[static_cast<size_t>(way)];
    keep_last(with_places ? with : without, seconds);
    if (!with_places) {
      keep_last(in_pieces_, in_pieces);
    }
    const auto count = std::count(in_pieces_.begin(), in_pieces_.end(), true);
    const bool often = count >= kOften && 2 * count >= std::ptrdiff_t(in_pieces_.size());
    switch (state_) {
      case State::Unknown:
        if (!often) {
          return false;
        }
        state_ = State::Tried;
        with_ = {};
        tried_ = 0;
        return true;
      case State::Tried:
        if (!with_places || (tried_ > 0 && way != way_)) {
          return false;
        }
        way_ = way;
        if (++tried_ < kIterations) {
          return false;
        }
        state_ = without.empty() || median(with) <= median(without) ? State::Kept : State::GivenUp;
        return state_ == State::GivenUp;
      case State::Doubted:
        if (with_places || way != way_ || without.size() < kIterations) {
          return false;
        }
        state_ = median(with) <= median(without) ? State::Kept : State::GivenUp;
        return state_ == State::Kept;
      case State::Kept:
      case State::GivenUp:
        return false;
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
  enum class State { Unknown, Tried, Kept, Doubted, GivenUp };

  using Seconds = std::vector<double>;

  // Iterations in which free memory is in pieces, and half of the last: to try places takes longer
  // than to join it now and then.
  static constexpr std::ptrdiff_t kOften = 2;
  // With places: no more than a trial has of one way, because a way that compresses says nothing
  // about one that copies.
  static constexpr size_t kIterations = Trial::kIterations;
  // Without places. The first of all say little of later ones: programs grow, and plans change.
  static constexpr size_t kLast = 8;
  static constexpr unsigned kLosses = 4;

  template <class T>
  static void keep_last(std::vector<T>& all, T next) {
    if (all.size() == kLast) {
      all.erase(all.begin());
    }
    all.push_back(next);
  }

  State state_ = State::Unknown;
  std::array<Seconds, 3> without_; // by way, of the last iterations
  std::array<Seconds, 3> with_; // the same, with places
  size_t tried_ = 0; // iterations
  Trial::Way way_ = Trial::Way::Copy; // in which iterations are compared, or were
  std::vector<bool> in_pieces_; // the last iterations without places: whether free memory was
  unsigned losses_ = 0;
  size_t most_ = INT64_MAX;
};

} // namespace torch::cuda::lms

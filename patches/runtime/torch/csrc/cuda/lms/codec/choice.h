#pragma once

#include <cstdint>

namespace torch::cuda::lms::codec {

// Whether a block is packed when it is paged out next, from what came of it, or of blocks like it,
// before. It takes two bytes.
//
// A block is packed the first time. As long as it shrinks to kWorth of its size, it is packed
// again. Otherwise the next kFirstPause page-outs are copies, and then it is tried again, because
// what a model computes changes while it is trained. Each time that this fails, the pause is twice
// as long, up to kLongestPause. One success ends this.
class Choice {
 public:
  // If less is saved, the kernels are no faster than the copy engine. Alone, they reach 0.9 of its
  // rate, and less if the other direction is in use: fp32, of which 0.86 is left, moves at 44 GB/s
  // to the host and 31 back then, where copies have 50 and 47
  // (docs/results/2026-11-28-both-directions.md).
  static constexpr double kWorth = 0.8;
  static constexpr uint8_t kFirstPause = 8;
  static constexpr uint8_t kLongestPause = 128;

  bool pack() const {
    return left_ == 0;
  }

  // The block was packed: `written` bytes of `bytes`.
  void packed(uint64_t bytes, uint64_t written) {
    if (static_cast<double>(written) <= kWorth * static_cast<double>(bytes)) {
      pause_ = 0;
      return;
    }
    const int longer = pause_ == 0 ? kFirstPause : 2 * pause_;
    pause_ = static_cast<uint8_t>(longer < kLongestPause ? longer : kLongestPause);
    left_ = pause_;
  }

  // The block was copied as it is.
  void copied() {
    left_ -= left_ > 0;
  }

 private:
  uint8_t pause_ = 0; // page-outs
  uint8_t left_ = 0; // page-outs
};

} // namespace torch::cuda::lms::codec

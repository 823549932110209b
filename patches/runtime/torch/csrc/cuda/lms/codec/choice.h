#pragma once

#include <cstdint>

namespace torch::cuda::lms::codec {

// Whether a block is packed when it is paged out next, from what came of it, or of blocks like it,
// before. It takes two bytes.
//
// A block is packed the first time. As long as it shrinks enough, it is packed again. Otherwise the
// next kFirstPause page-outs are copies, and then it is tried again, because what a model computes
// changes while it is trained. Each time that this fails, the pause is twice as long, up to
// kLongestPause. One success ends this.
class Choice {
 public:
  static constexpr uint8_t kFirstPause = 8;
  static constexpr uint8_t kLongestPause = 128;

  bool pack() const {
    return left_ == 0;
  }

  // The block was packed, and shrank enough or not.
  void packed(bool shrank) {
    if (shrank) {
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

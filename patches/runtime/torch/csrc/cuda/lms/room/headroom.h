#pragma once

#include <algorithm>
#include <cstddef>

namespace torch::cuda::lms {

// How far below the automatic limit LMS stays, because requests that the limit
// let through failed: what was free lay in pieces, or somebody else took it. The
// native allocator's error path gives its cache back and stops the device, so a
// few page-outs more cost less. But pieces come and go: it shrinks again.
class Headroom {
 public:
  size_t bytes() const {
    return bytes_;
  }

  void failed(size_t limit) {
    bytes_ = std::min(bytes_ + limit / 32, limit / 4);
    allocated_ = 0;
  }

  void allocated(size_t bytes, size_t limit) {
    if (bytes_ == 0) {
      return;
    }
    allocated_ += bytes;
    // As much as several iterations allocate.
    if (allocated_ / 32 >= limit) {
      bytes_ -= std::min(bytes_, limit / 64);
      allocated_ = 0;
    }
  }

 private:
  size_t bytes_ = 0;
  size_t allocated_ = 0; // bytes, since it changed last
};

} // namespace torch::cuda::lms

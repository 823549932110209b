#pragma once

#include <algorithm>
#include <cstddef>

namespace torch::cuda::lms {

// How far LMS stays below the limit, because requests within the limit have failed: free memory was
// fragmented, or other processes took it. When the native allocator fails, it empties its cache and
// waits for the device, so a few more page-outs are cheaper. Fragmentation changes over time, so
// the headroom shrinks again.
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
    // about as much as several iterations allocate
    if (allocated_ / 32 >= limit) {
      bytes_ -= std::min(bytes_, limit / 64);
      allocated_ = 0;
    }
  }

 private:
  size_t bytes_ = 0;
  size_t allocated_ = 0; // bytes since the last change
};

} // namespace torch::cuda::lms

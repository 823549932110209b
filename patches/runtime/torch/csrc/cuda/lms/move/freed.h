#pragma once

#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace torch::cuda::lms {

// When free memory was last used. The native allocator gives free memory out in the order of its
// home stream: whoever uses it there runs behind everything that this stream has queued. A page-in
// runs on another stream. Were it to wait for all that the home stream has queued, it would never
// run beside computation; so it waits for the last use of its own memory. (RMM, too, keeps an event
// for each free block.) One for each device, under the LMS mutex.
//
// Only what the native allocator cuts from large segments is known here. It hears of every request
// for such memory; what is freed without its knowing is unknown from then on. The addresses of a
// large segment that went back to the device can come again as a small one.
class FreedMemory {
 public:
  // Whether memory for a request of so many bytes comes from a large segment.
  static constexpr bool knows(size_t bytes) {
    return bytes > StatArray::kSmallSize;
  }

  // Such memory goes back to the native allocator. The event is complete when its last use is.
  void freed(const void* memory, size_t bytes, EventRef last_use);

  // The native allocator has given the memory out.
  void taken(const void* memory, size_t bytes) {
    if (!ranges_.empty()) {
      erase(reinterpret_cast<uintptr_t>(memory), bytes);
    }
  }

  // Makes the stream wait for the last use of memory that is about to be taken for a request of so
  // many bytes. False, and no wait, if that is not known. Throws c10::Error.
  bool block(const void* memory, size_t bytes, cudaStream_t stream) const;

  void forget() {
    ranges_.clear();
  }

 private:
  struct Range {
    uintptr_t end;
    EventRef last_use;
  };
  using Ranges = std::map<uintptr_t, Range>; // by their beginnings; none overlap

  // So many are kept. Addresses that went back to the device need not come again.
  static constexpr size_t kRanges = 4096;

  void erase(uintptr_t begin, size_t bytes);
  Ranges::const_iterator first_behind(uintptr_t address) const;

  Ranges ranges_;
};

} // namespace torch::cuda::lms

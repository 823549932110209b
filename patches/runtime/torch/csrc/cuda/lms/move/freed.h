#pragma once

#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace torch::cuda::lms {

// Remembers when free memory was last used. There is one for each device, under the LMS mutex.
//
// The native allocator hands out free memory in the order of its home stream: work on that stream
// runs after everything that is already queued there. A page-in runs on another stream. If it
// waited for all queued work of the home stream, it could never overlap with compute. Therefore it
// waits only for the last use of its own memory. (RMM keeps an event for each free block, too.)
//
// This class only knows memory that the native allocator takes from large segments, because it is
// told only about requests for such memory. Memory that was taken, and then freed without a call of
// freed(), is unknown. When a large segment is returned to the device, a small segment can later
// have the same addresses.
class FreedMemory {
 public:
  // Whether memory for a request of this number of bytes comes from a large segment.
  static constexpr bool knows(size_t bytes) {
    return bytes > StatArray::kSmallSize;
  }

  // Call this when such memory goes back to the native allocator. The event is complete when the
  // last use of the memory is.
  void freed(const void* memory, size_t bytes, EventRef last_use);

  // Call this when the native allocator has handed out the memory.
  void taken(const void* memory, size_t bytes) {
    if (!ranges_.empty()) {
      erase(reinterpret_cast<uintptr_t>(memory), bytes);
    }
  }

  // Makes the stream wait for the last use of memory that is about to be taken for a request of
  // this number of bytes. Returns false, without a wait, if the last use is not known. Throws
  // c10::Error.
  bool block(const void* memory, size_t bytes, cudaStream_t stream) const;

  void forget() {
    ranges_.clear();
  }

 private:
  struct Range {
    uintptr_t end;
    EventRef last_use;
  };
  using Ranges = std::map<uintptr_t, Range>; // by start address; ranges do not overlap

  // Maximum number of ranges; all are forgotten when it is reached. Addresses that were returned to
  // the device may never come back, so the number would grow.
  static constexpr size_t kRanges = 4096;

  void erase(uintptr_t begin, size_t bytes);
  Ranges::const_iterator first_behind(uintptr_t address) const;

  Ranges ranges_;
};

} // namespace torch::cuda::lms

#pragma once

#include <torch/csrc/cuda/lms/event.h>

#include <cstddef>
#include <deque>
#include <map>
#include <vector>

namespace torch::cuda::lms {

// A range of pinned host memory, in bytes. Plain data: the arena owns the slab.
struct HostBuffer {
  char* data = nullptr;
  size_t size = 0;

  explicit operator bool() const {
    return data != nullptr;
  }
};

// Pinned host memory of one device: large slabs, suballocated best fit in
// steps of kAlign bytes, neighbours merged when freed. Pinning costs about
// 0.4 s per GiB, so a slab is kept until trim().
// Used under the LMS mutex.
class Arena {
 public:
  // A buffer of at least this many bytes. Waits on the host for a buffer whose
  // copies are in flight before it pins more memory. Throws c10::Error when no
  // host memory can be pinned.
  HostBuffer take(size_t bytes);

  // The buffer may be used again when the event is complete (null: at once).
  void give(HostBuffer buffer, EventRef copied);

  // Unpins slabs that hold no buffer; returns the bytes released.
  size_t trim();

  size_t pinned_bytes() const {
    return pinned_;
  }
  size_t used_bytes() const {
    return used_;
  }

 private:
  struct Pending {
    HostBuffer buffer;
    EventRef copied;
  };

  bool fit(size_t bytes, HostBuffer& buffer);
  void insert(char* data, size_t size);
  void grow(size_t bytes);
  void collect();

  static constexpr size_t kAlign = 4096; // bytes
  static constexpr size_t kSmallestSlab = size_t(8) << 20; // bytes
  static constexpr size_t kLargestSlab = size_t(512) << 20; // bytes

  std::map<char*, size_t> slabs_; // start -> bytes
  std::map<char*, size_t> free_; // start -> bytes, never across slabs
  std::multimap<size_t, char*> by_size_;
  std::deque<Pending> pending_;
  size_t pinned_ = 0;
  size_t used_ = 0;
};

} // namespace torch::cuda::lms

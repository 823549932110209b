#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>

namespace torch::cuda::lms {

struct HostPart {
  char* data;
  size_t size; // bytes
};

// Pinned host memory for the bytes of one storage, in one or more parts. The arena owns the memory.
class HostBuffer {
 public:
  void add(char* data, size_t size) {
    parts_.push_back({data, size});
    size_ += size;
  }

  // Takes at most this many bytes, and at most one part, from the end. The buffer must not be
  // empty.
  HostPart cut(size_t bytes) {
    HostPart& last = parts_.back();
    const size_t size = std::min(bytes, last.size);
    last.size -= size;
    size_ -= size;
    const HostPart end{last.data + last.size, size};
    if (last.size == 0) {
      parts_.pop_back();
    }
    return end;
  }

  const c10::SmallVector<HostPart, 2>& parts() const {
    return parts_;
  }
  size_t size() const {
    return size_; // bytes
  }
  explicit operator bool() const {
    return size_ > 0;
  }

  // Calls piece(address of the part, offset in the storage, bytes) for each part of the first
  // `bytes` bytes. The end of the buffer may be unused.
  template <typename Piece>
  void each(size_t bytes, Piece piece) const {
    each(0, bytes, piece);
  }
  // The same for the bytes from `begin` to `end`. The offset is that from `begin`.
  template <typename Piece>
  void each(size_t begin, size_t end, Piece piece) const {
    size_t offset = 0; // of the part in the buffer
    for (const HostPart& part : parts_) {
      const size_t first = std::max(offset, begin);
      const size_t last = std::min(offset + part.size, end);
      if (first < last) {
        piece(part.data + (first - offset), first - begin, last - first);
      }
      offset += part.size;
    }
  }

 private:
  c10::SmallVector<HostPart, 2> parts_;
  size_t size_ = 0;
};

} // namespace torch::cuda::lms

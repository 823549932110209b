#pragma once

#include <cstddef>
#include <vector>

namespace torch::cuda::lms {

// Owns one mapping of pinned host memory.
//
// If the CUDA driver allocates and pins memory, it takes 0.3 s per GiB in one thread, and launches
// of other threads are blocked meanwhile. If several threads first touch huge pages, which the
// driver then registers, it takes 0.03 s per GiB (H200 host, 16 cores: docs/results).
class Slab {
 public:
  // Rounds the size up to whole huge pages, and prefers a NUMA node (-1: any). Throws c10::Error if
  // the memory cannot be allocated or pinned.
  Slab(size_t bytes, int node);
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab();

  // Unpins the memory. Throws c10::Error if the driver refuses; nothing has changed then.
  void release();

  static size_t rounded(size_t bytes);

  char* data() const {
    return data_;
  }
  size_t size() const {
    return size_; // bytes
  }
  // Bytes on each NUMA node.
  const std::vector<size_t>& by_node() const {
    return by_node_;
  }

 private:
  bool map(int node);
  void unmap();

  char* data_ = nullptr;
  const size_t size_;
  bool registered_ = false; // false if the driver allocated the memory
  std::vector<size_t> by_node_;
};

} // namespace torch::cuda::lms

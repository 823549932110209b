#pragma once

#include <cstddef>
#include <vector>

namespace torch::cuda::lms {

// A mapping of pinned host memory. Owns it.
//
// Memory that the CUDA driver allocates and pins takes 0.3 s per GiB, in one
// thread, and holds up other threads' launches meanwhile. Huge pages that
// several threads touch first and the driver then registers take 0.03 s
// (H200 host, 16 cores: docs/results).
class Slab {
 public:
  // Rounds the size up to whole huge pages and prefers a NUMA node (-1: any).
  // Throws c10::Error when the memory cannot be had or pinned.
  Slab(size_t bytes, int node);
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab();

  // Unpins it. Throws c10::Error when the driver refuses; it is as it was then.
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
  bool registered_ = false; // else the driver allocated it
  std::vector<size_t> by_node_;
};

} // namespace torch::cuda::lms

#pragma once

// Information about the native allocator that PyTorch before 1.4 does not provide, with the names
// of 1.4. The functions are defined in its CUDACachingAllocator.cpp, because only that file has
// access to the blocks: see inside_inl.h.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch {
namespace cuda {
namespace lms {
namespace inside {

struct Stat {
  int64_t current = 0;
  int64_t allocated = 0; // the sum of all increases
};

// The sums over all pools, so each array has one element.
struct DeviceStats {
  Stat segment[1]; // only `allocated` is known
  Stat allocated_bytes[1]; // only `current` is known
  Stat reserved_bytes[1]; // likewise
  int64_t num_alloc_retries = 0; // not known
};

struct BlockInfo {
  int64_t size = 0; // bytes
  bool allocated = false;
  bool active = false; // allocated, or waiting for a stream
};

// Memory from one call of cudaMalloc().
struct SegmentInfo {
  int64_t device = 0;
  int64_t address = 0;
  int64_t total_size = 0; // bytes
  bool is_large = false; // whether requests of more than 1 MiB are served from it
  cudaStream_t stream = nullptr;
  std::vector<BlockInfo> blocks; // by address; contiguous
};

// Bytes of memory that LMS cannot page out.
struct Active {
  int64_t current = 0;
  int64_t peak = 0; // since the last reset
};

DeviceStats getDeviceStats(int device);
Active active(int device, size_t idle); // `idle`: bytes that LMS can page out
void reset_active(int device);
std::vector<SegmentInfo> snapshot();

} // namespace inside
} // namespace lms
} // namespace cuda
} // namespace torch

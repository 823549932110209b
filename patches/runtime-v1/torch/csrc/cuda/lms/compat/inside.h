#pragma once

// What PyTorch before 1.4 does not tell of its native allocator, in the words of 1.4.
// Defined in its CUDACachingAllocator.cpp, which alone sees the blocks: see
// inside_inl.h.

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
  int64_t allocated = 0; // ever
};

// Of all pools together, hence one element each.
struct DeviceStats {
  Stat segment[1]; // only what was allocated ever is known
  Stat allocated_bytes[1]; // only the current ones are known
  Stat reserved_bytes[1]; // likewise
};

struct BlockInfo {
  int64_t size = 0; // bytes
  bool allocated = false;
  bool active = false; // allocated, or waiting for a stream
};

// What one cudaMalloc() gave.
struct SegmentInfo {
  int64_t device = 0;
  int64_t address = 0;
  int64_t total_size = 0; // bytes
  cudaStream_t stream = nullptr;
  std::vector<BlockInfo> blocks; // by address, without gaps
};

// Memory that LMS cannot page out, in bytes.
struct Active {
  int64_t current = 0;
  int64_t peak = 0; // since it was reset
};

DeviceStats getDeviceStats(int device);
Active active(int device, size_t idle); // what it can page out
void reset_active(int device);
std::vector<SegmentInfo> snapshot();

} // namespace inside
} // namespace lms
} // namespace cuda
} // namespace torch

#pragma once

#include <torch/csrc/cuda/lms/kernel/module.h>

#include <cstddef>
#include <cstdint>

// The kernels of the release check, and what they are passed: a second
// declaration of the structures in checksum.cpp, which NVRTC reads.
namespace torch::cuda::lms::checksum {

extern const KernelSource kSource;

constexpr unsigned kThreads = 256; // of a block
constexpr size_t kTile = size_t(128) << 10; // bytes that a block hashes at a time
constexpr size_t kParts = 8; // most parts of one launch

struct Bytes {
  const char* data;
  uint64_t size;
};

// Of one block of memory, on the device. All zero at first.
struct Slot {
  uint64_t expected; // hash
  uint64_t sum; // of the launch in progress
  uint32_t done; // its thread blocks that have added to it
  uint32_t differs; // the last check found a difference
};

// In pinned host memory.
struct Report {
  uint32_t* caught; // how often a check with this slot found a difference
  uint32_t* changed; // a count has changed since this was 0
};

struct Part {
  char* data; // pinned host memory
  uint64_t offset; // in the block of memory
  uint64_t size; // bytes
};

struct Parts {
  uint64_t count;
  Part part[kParts];
};

// expected := the bytes' hash.
constexpr const char* kHash = "lms_hash"; // (Bytes, Slot*)
// Whether it differs from what was expected; it is expected from now on.
constexpr const char* kCheck = "lms_check"; // (Bytes, Slot*, Report)
// Where it differed, writes the bytes to the host.
constexpr const char* kRestore = "lms_restore"; // (Bytes, const Slot*, Parts)

} // namespace torch::cuda::lms::checksum

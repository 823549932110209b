#pragma once

#include <torch/csrc/cuda/lms/codec/hash.h>

#include <cstddef>
#include <cstdint>
#include <string>

// The kernels of the release check and their parameters. The structures are declared a second time
// in checksum.cpp, for NVRTC.
namespace torch::cuda::lms::checksum {

std::string source();

constexpr unsigned kThreads = 256; // per block
constexpr size_t kTile = size_t(32)
                         << 10; // bytes for which one more thread block is worth its launch
constexpr size_t kParts = 8; // maximum number of parts in one launch

struct Bytes {
  const char* data;
  uint64_t size;
};

using codec::Slot;

// In pinned host memory.
struct Report {
  uint32_t* caught; // how many checks with this slot have found a difference
  uint32_t* changed; // set to 1 when a count has changed
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

// Sets the expected hash to that of the bytes.
constexpr const char* kHash = "lms_hash"; // (Bytes, Slot*)
// Compares the hash of the bytes with the expected one, which it then replaces.
constexpr const char* kCheck = "lms_check"; // (Bytes, Slot*, Report)
// Copies the bytes to the host if the last check found a difference.
constexpr const char* kRestore = "lms_restore"; // (Bytes, const Slot*, Parts)

} // namespace torch::cuda::lms::checksum

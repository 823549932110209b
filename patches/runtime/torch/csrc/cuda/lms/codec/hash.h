#pragma once

#include <cstddef>
#include <cstdint>

// The hash of a block of memory, by which the release check finds unseen writes. Kernels that pack
// and unpack compute it from the bytes that they have at hand; kernel/checksum.h has those that
// only hash.
namespace torch::cuda::lms::codec {

// The state for one block of memory, on the device. Initially zero. Declared a second time in
// hash.cpp, for NVRTC.
struct Slot {
  uint64_t expected; // hash
  uint64_t sum; // partial sum of the launch in progress
  uint64_t pieces; // partial sum of launches that do not compare it themselves
  uint32_t done; // shares that have been added to `sum`
  uint32_t differs; // whether the last check found a difference
};

// What has to be cleared if a launch of several failed.
constexpr size_t kSumsBegin = offsetof(Slot, sum);
constexpr size_t kSumsBytes = offsetof(Slot, differs) - kSumsBegin;

// Where the hash of a block is. Null without one.
struct Hash {
  Slot* slot = nullptr; // on the device
  uint32_t* corrupted = nullptr; // pinned host memory; set to 1 if a block has come back wrong
};

} // namespace torch::cuda::lms::codec

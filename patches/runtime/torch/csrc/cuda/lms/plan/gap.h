#pragma once

#include <torch/csrc/cuda/lms/plan/trace.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace torch::cuda::lms::plan {

// The operators between two consecutive uses of a block, in which it need not be on the device.
// There are operators between them: uses by neighbours have no gap.
struct Gap {
  static constexpr Place kNever = std::numeric_limits<Place>::max();

  uint32_t block;
  int64_t bytes;
  Place begin; // the last use before it, in [0, size); -1 if this iteration has no use at all
  Place end; // the place after its last operator, in (begin + 1, begin + size]
  Place next; // the next use: `end`, or kNever
  Place written; // the last write before it, at most `begin`; kNever if nothing writes the block
  bool fresh; // the block was written since its gap before this one

  bool returns() const {
    return next != kNever;
  }
};

// The gaps of all blocks that have bytes: those of one block are neighbours, in order.
std::vector<Gap> gaps_of(const Trace& trace);

// Bytes that live at each operator, wherever they are, and the unmanaged ones.
std::vector<int64_t> living(const Trace& trace);

// Bytes that each operator cannot do without: what it uses, and the unmanaged ones.
std::vector<int64_t> needed(const Trace& trace);

// Whether each chosen gap needs a copy to the host. It does not when the host has one from an
// earlier chosen gap, and when nothing ever writes the block.
std::vector<bool>
copies(const Trace& trace, const std::vector<Gap>& gaps, const std::vector<bool>& chosen);

} // namespace torch::cuda::lms::plan

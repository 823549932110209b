#pragma once

#include <torch/csrc/cuda/lms/follow/lives.h>
#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/replay.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace torch::cuda::lms {

// Where each block of a plan has its memory: offsets in a range of addresses, so that free memory
// is never in pieces that are too small. A block has another one each time it comes back.
class Places {
 public:
  // Memory is taken in multiples of this number of bytes. What is left of free memory is then none,
  // or more than what the native allocator would give away with a block (1 MiB).
  static constexpr size_t kGrain = (size_t(1) << 20) + 512;
  static constexpr size_t rounded(size_t bytes) {
    return (bytes + kGrain - 1) / kGrain * kGrain;
  }
  Places() = default;
  // For the blocks of a plan. `links` are the numbers that blocks have in the next iteration, see
  // Script, and `stay` says of each number that the block has no place. `rest` are blocks of the
  // iteration before that nothing uses, and until when they are there. Empty if there are no such
  // places within `limit` bytes.
  struct Rest {
    uint32_t number; // in the iteration before; 0 if it is not known
    plan::Place freed;
  };
  Places(
      const Lives& lives,
      const std::vector<plan::Move>& moves,
      const std::vector<uint32_t>& links,
      const std::vector<bool>& stay,
      const std::vector<Rest>& rest,
      int64_t limit);

  explicit operator bool() const {
    return bytes_ > 0;
  }
  // Most bytes that blocks have at the same time: no places are in less.
  int64_t load() const {
    return load_;
  }
  // Of all addresses.
  size_t bytes() const {
    return bytes_;
  }

  // Who gets memory that a move gave up.
  const std::vector<plan::Handover>& handovers() const {
    return handovers_;
  }

  // Of the memory that the block gets at this operator. None if the plan knows of none.
  std::optional<size_t> at(uint32_t number, plan::Place place) const;

 private:
  struct Stay {
    int64_t begin;
    int64_t end;
    int64_t offset;
  };

  std::vector<std::vector<Stay>> stays_; // by number, in the order of their times
  std::vector<plan::Handover> handovers_;
  Lives lives_;
  size_t bytes_ = 0;
  int64_t load_ = 0;
};

} // namespace torch::cuda::lms

#pragma once

#include <torch/csrc/cuda/lms/block/block.h>

namespace torch::cuda::lms {

// Chooses the block to page out next. Among the least recently used idle blocks it takes the one
// that fits the need best, so that a small request does not move a huge block. The policy is told
// about every allocation, use and free of a managed block, in issue order. A planner that records
// these can replace this class.
class Policy {
 public:
  void allocated(Block&) {}

  // An operator starts to use the block.
  void used(Block& block) {
    remove(block);
  }

  // The last operator that used the block has ended.
  void released(Block& block) {
    remove(block);
    block.place = idle_.insert(idle_.end(), &block);
    block.idle = true;
    bytes_ += rounded(block.size);
  }

  void freed(Block& block) {
    remove(block);
  }

  // Bytes of device memory that idle blocks occupy.
  size_t bytes() const {
    return bytes_;
  }

  // The block to page out when this number of bytes is missing; null if no block is idle.
  Block* victim(size_t missing) const {
    Block* best = nullptr;
    size_t seen = 0;
    for (Block* const block : idle_) {
      if (block->size >= missing && (!best || block->size < best->size)) {
        best = block;
      }
      // Newer blocks will be needed sooner, so they are not considered even if they fit better.
      if (++seen == kWindow) {
        break;
      }
    }
    return best || idle_.empty() ? best : idle_.front();
  }

  // The smallest idle block of at least this number of bytes; null if there is none.
  Block* fitting(size_t bytes) const {
    Block* best = nullptr;
    for (Block* const block : idle_) {
      if (block->size >= bytes && (!best || block->size < best->size)) {
        best = block;
      }
    }
    return best;
  }

  void remove(Block& block) {
    if (block.idle) {
      idle_.erase(block.place);
      block.idle = false;
      bytes_ -= rounded(block.size);
    }
  }

 private:
  static constexpr size_t kWindow = 16; // blocks

  std::list<Block*> idle_; // oldest first
  size_t bytes_ = 0;
};

} // namespace torch::cuda::lms

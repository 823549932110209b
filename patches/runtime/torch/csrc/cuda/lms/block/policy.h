#pragma once

#include <torch/csrc/cuda/lms/block/block.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <vector>

namespace torch::cuda::lms {

// Chooses the block to page out next. Among the least recently used idle blocks it takes the one
// that fits the need best, so that a small request does not move a huge block. While it foresees
// what comes, it takes the block whose next use is furthest away.
class Policy {
 public:
  // From now on, blocks are chosen by their next use. `now` is the number of the running operator,
  // on the scale of Block::next_use. Blocks whose next use is not known, or has passed, are not
  // expected to be used at all.
  void foresee(uint64_t now) {
    now_ = now;
  }
  // From now on, blocks are chosen by their last use.
  void forget() {
    now_ = 0;
  }

  // Whether the transfer of the block that is in flight will have ended when the running operator
  // starts, as far as that is foreseen.
  bool expects_end(const Block& block) const {
    return now_ > 0 && block.busy_until > 0 && block.busy_until <= now_;
  }

  // An operator starts to use the block.
  void used(Block& block) {
    remove(block);
  }

  // The last operator that used the block has ended.
  void released(Block& block) {
    remove(block);
    if (spare_.empty()) {
      block.place = idle_.insert(idle_.end(), &block);
    } else {
      block.place = spare_.begin();
      *block.place = &block;
      idle_.splice(idle_.end(), spare_, block.place);
    }
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
    if (now_ > 0) {
      return furthest(1);
    }
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

  // An idle block of at least this number of bytes, the smallest one if nothing is foreseen; null
  // if there is none.
  Block* fitting(size_t bytes) const {
    if (now_ > 0) {
      return furthest(bytes);
    }
    Block* best = nullptr;
    for (Block* const block : idle_) {
      if (block->size >= bytes && (!best || block->size < best->size)) {
        best = block;
      }
    }
    return best;
  }

  // The idle blocks, in the order in which they should leave.
  std::vector<Block*> candidates() const {
    std::vector<Block*> blocks(idle_.begin(), idle_.end());
    if (now_ > 0) {
      std::stable_sort(blocks.begin(), blocks.end(), [this](const Block* a, const Block* b) {
        return expected(*a) > expected(*b);
      });
    }
    return blocks;
  }

  // What it costs to page out the block for a request at once, in bytes that the stream waits for:
  // those of the page-out, and if an operator needs the block soon, those of its page-in.
  size_t cost(const Block& block) const {
    const bool soon = now_ > 0 && expected(block) <= now_ + kSoon;
    return (soon ? 2 : 1) * rounded(block.size);
  }

  void remove(Block& block) {
    if (block.idle) {
      spare_.splice(spare_.begin(), idle_, block.place);
      block.idle = false;
      bytes_ -= rounded(block.size);
    }
  }

 private:
  // The block's next use: that of now, too, if the operators of a node have not come to it yet.
  uint64_t expected(const Block& block) const {
    return block.next_use >= now_ && block.next_use > 0 ? block.next_use : UINT64_MAX;
  }

  // The idle block of at least this number of bytes that is used last.
  Block* furthest(size_t bytes) const {
    Block* best = nullptr;
    uint64_t best_use = 0;
    for (Block* const block : idle_) {
      const uint64_t use = expected(*block);
      if (block->size >= bytes && use > best_use) {
        best = block;
        best_use = use;
      }
    }
    return best;
  }

  static constexpr size_t kWindow = 16; // blocks
  static constexpr uint64_t kSoon = 16; // operators; a page-in of 250 MB took as long as 8 (U-Net)

  std::list<Block*> idle_; // oldest first
  // Elements to use again, because each operator removes and adds some. As many as there once were.
  std::list<Block*> spare_;
  size_t bytes_ = 0;
  uint64_t now_ = 0; // 0 if nothing is foreseen
};

} // namespace torch::cuda::lms

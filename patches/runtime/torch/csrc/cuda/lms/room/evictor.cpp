#include <torch/csrc/cuda/lms/room/evictor.h>

#include <torch/csrc/cuda/lms/room/neighbours.h>
#include <torch/csrc/cuda/lms/room/pages.h>

#include <algorithm>
#include <vector>

namespace torch::cuda::lms {

namespace {

// The native allocator does not reuse memory at once if record_stream() was called for it.
bool recorded(const Block& block) {
  return std::any_of(
      block.uses.begin(), block.uses.end(), [](const Use& use) { return use.recorded; });
}

} // namespace

bool Evictor::drop(Block& block) {
  return block.idle && try_page_out(block) == Mover::Outcome::Moved;
}

// A block that stays keeps its place among the idle ones, so that it is the next to leave: which
// block leaves does not depend on how long the host takes to pin memory.
Mover::Outcome Evictor::try_page_out(Block& block) {
  const Mover::Outcome outcome = mover_.page_out(block);
  if (outcome == Mover::Outcome::Moved || outcome == Mover::Outcome::Gone) {
    policy_.remove(block);
  }
  return outcome;
}

Mover::Outcome Evictor::page_out(Block& block) {
  const compat::RelaxedCapture relaxed; // another device may be captured
  const Mover::Outcome outcome = try_page_out(block);
  if (outcome == Mover::Outcome::Busy) {
    try {
      mover_.supply().provide();
    } catch (const c10::Error& error) {
      mover_.trouble(error.what_without_backtrace());
      return Mover::Outcome::Failed;
    }
  } else if (outcome == Mover::Outcome::Unfinished) {
    mover_.finish_collectives();
  }
  return outcome;
}

Block* Evictor::victim(size_t missing) const {
  return compactor_.may_move() ? policy_.victim(missing) : nullptr;
}

size_t Evictor::reclaim(size_t wanted) {
  attention_.begin();
  if (pools_.capturing()) {
    return 0;
  }
  // What other threads use and leave idle meanwhile does not count: they could go on for ever.
  wanted = std::min(wanted, policy_.bytes());
  size_t bytes = 0;
  while (bytes < wanted) {
    Block* const victim = this->victim(wanted - bytes);
    if (!victim) {
      break;
    }
    const size_t size = victim->size;
    const Mover::Outcome outcome = page_out(*victim);
    if (outcome == Mover::Outcome::Failed) {
      break;
    }
    if (outcome == Mover::Outcome::Moved) {
      bytes += size;
    }
  }
  return bytes;
}

bool Evictor::reclaim_one(size_t bytes) {
  while (Block* const block = compactor_.may_move() ? policy_.fitting(bytes) : nullptr) {
    const Mover::Outcome outcome = page_out(*block);
    if (outcome == Mover::Outcome::Moved) {
      return true;
    }
    if (outcome == Mover::Outcome::Failed) {
      break;
    }
  }
  return false;
}

// Pages out the blocks that choose(segments) returns. Returns false if it moved none.
template <class F>
bool Evictor::reclaim_chosen(F choose) {
  bool moved = false;
  for (;;) {
    const auto snapshot = native_.snapshot();
    if (!compactor_.may_move()) {
      return moved;
    }
    bool again = false;
    for (Block* const block : choose(snapshot.segments)) {
      const Mover::Outcome outcome = page_out(*block);
      moved = moved || outcome == Mover::Outcome::Moved;
      if (outcome == Mover::Outcome::Failed) {
        return moved; // the next one would fail, too, and the others may have been deleted
      }
      again = outcome == Mover::Outcome::Busy || outcome == Mover::Outcome::Unfinished;
      if (again) {
        break; // the other blocks may have been deleted
      }
    }
    if (!again) {
      return moved;
    }
  }
}

bool Evictor::reclaim_pages(size_t bytes, size_t left) {
  const size_t needed = in_pages(bytes);
  if (needed <= left) {
    return false; // pages are not what is missing
  }
  const size_t missing = needed - left;
  return reclaim_chosen([this, missing](const auto& segments) {
    std::vector<Block*> idle = policy_.candidates();
    idle.erase(
        std::remove_if(idle.begin(), idle.end(), [](Block* block) { return recorded(*block); }),
        idle.end());
    return pages(segments, device_, missing, idle);
  });
}

bool Evictor::reclaim_obstacles(size_t bytes, size_t left) {
  return reclaim_chosen([this, bytes, left](const auto& segments) {
    return compactor_.obstacles(segments, bytes, left);
  });
}

bool Evictor::reclaim_neighbours(size_t bytes) {
  return reclaim_chosen([this, bytes](const auto& segments) {
    Blocks idle;
    registry_.each([&](Block& block) {
      if (block.idle && !recorded(block)) {
        idle.emplace(reinterpret_cast<size_t>(block.memory.get()), &block);
      }
    });
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_).stream();
    return neighbours(segments, device_, stream, bytes, idle);
  });
}

} // namespace torch::cuda::lms

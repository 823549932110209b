#include <torch/csrc/cuda/lms/room/compactor.h>

#include <torch/csrc/cuda/lms/base/lock.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

namespace torch::cuda::lms {

// Only blocks of one stream move: the stream itself orders that after the block's uses, and before
// the next use of the old memory.
bool Compactor::movable(const Block& block, cudaStream_t stream) const {
  const bool here = block.state.is(State::Resident) || block.state.is(State::PagingIn);
  return here && block.on_device() && block.home && !compat::is_external(*block.home) &&
         block.home->stream() == stream && mover_.finished(block) &&
         std::all_of(block.uses.begin(), block.uses.end(), [&](const Use& use) {
           return use.timeline->stream().stream() == stream;
         });
}

// A block that is being copied to the host still needs its memory, and one that is being copied
// from there is not complete: the stream would have to wait.
bool Compactor::settled(const Block& block, cudaStream_t stream) const {
  const bool ordered =
      !block.arrived ||
      std::find(block.ordered.begin(), block.ordered.end(), stream) != block.ordered.end() ||
      block.arrived->done();
  const bool copied = !block.left || block.left->done();
  return (ordered && copied) || policy_.expects_end(block);
}

template <class F>
Blocks Compactor::idle(cudaStream_t stream, F wanted) const {
  Blocks blocks;
  registry_.each([&](Block& block) {
    if (block.idle && movable(block, stream) && wanted(block)) {
      blocks.emplace(reinterpret_cast<size_t>(block.memory.get()), &block);
    }
  });
  return blocks;
}

void Compactor::shuffle() {
  try {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_);
    const auto all = [](const Block&) { return true; };
    const Blocks blocks = attention_.settled() ? idle(stream.stream(), all) : Blocks();
    for (const auto& entry : blocks) {
      // Others may have been used or freed while one was moved.
      const Blocks now = idle(stream.stream(), all);
      const auto found = now.find(entry.first);
      if (found != now.end()) {
        const size_t begin = found->first;
        move_out({begin, begin + rounded(found->second->size), {found->second}}, stream);
      }
    }
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
  }
}

void Compactor::join(size_t bytes, size_t left) {
  try {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_);
    const auto snapshot = native_.snapshot();
    if (attention_.settled()) {
      const Blocks blocks = idle(
          stream.stream(), [&](const Block& block) { return settled(block, stream.stream()); });
      move_out(window(snapshot.segments, device_, stream.stream(), bytes, left, blocks), stream);
    }
  } catch (const c10::Error&) {
    (void)cudaGetLastError(); // what failed moved nothing, and the request goes its usual way
  }
}

void Compactor::move_out(const Window& window, c10::cuda::CUDAStream stream) {
  // Blocks can be used, and storages can be freed, whenever memory is allocated.
  std::deque<Stay> stays;
  for (Block* const block : window.blocks) {
    stays.emplace_back(registry_, *block);
  }
  const c10::cuda::CUDAGuard guard(device_);
  std::vector<Loan> inside;
  std::vector<Loan> outside;
  for (Block* const block : window.blocks) {
    if (!find_place(window, block->size, inside, outside)) {
      return;
    }
  }
  for (size_t i = 0; i < window.blocks.size(); ++i) {
    Block& block = *window.blocks[i];
    if (block.stays.only(Reason::Operator) && window.contains(block.memory.get()) &&
        movable(block, stream.stream()) && attention_.settled()) {
      mover_.relocate(block, std::move(outside[i].memory));
    }
  }
}

// Allocates memory that is not in the window. The native allocator takes what fits best, so it may
// hand out the window's own free memory first: that is kept until the blocks have moved. Returns
// false if there is no more.
bool Compactor::find_place(
    const Window& window,
    size_t bytes,
    std::vector<Loan>& inside,
    std::vector<Loan>& outside) {
  while (native_.largest_free(device_) >= rounded(bytes)) {
    Loan loan{native_.allocate(bytes)};
    mover_.taken(loan.memory.get(), bytes);
    const bool found = !window.contains(loan.memory.get());
    (found ? outside : inside).push_back(std::move(loan));
    if (found) {
      return true;
    }
  }
  return false;
}

} // namespace torch::cuda::lms

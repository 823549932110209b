#include <torch/csrc/cuda/lms/room/compactor.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/room/loan.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

namespace torch::cuda::lms {

namespace {

// How many windows are tried: if the stream does not wait for transfers, and then if it does. If no
// way is found, the native allocator maps memory anew, which took 3 to 28 milliseconds on an H200.
constexpr int kTrials = 512;
constexpr int kTrialsThatWait = 4096;

size_t address(const at::DataPtr& memory) {
  return reinterpret_cast<size_t>(memory.get());
}

} // namespace

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
      blocks.emplace(address(block.memory), &block);
    }
  });
  return blocks;
}

void Compactor::shuffle() {
  try {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_);
    const auto all = [](const Block&) { return true; };
    const Blocks blocks = may_move() ? idle(stream.stream(), all) : Blocks();
    for (const auto& entry : blocks) {
      // Others may have been used or freed while one was moved.
      const Blocks now = idle(stream.stream(), all);
      const auto found = now.find(entry.first);
      if (found != now.end()) {
        const Stay stay(registry_, *found->second);
        move(*found->second, /*to=*/0, stream);
      }
    }
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
  }
}

bool Compactor::join(size_t bytes, size_t left) {
  return join(bytes, left, /*waits=*/false) || join(bytes, left, /*waits=*/true);
}

bool Compactor::join(size_t bytes, size_t left, bool waits) {
  try {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_);
    const bool may = may_move(); // can pause, and blocks can be freed then
    const auto snapshot = native_.snapshot();
    const Blocks blocks = idle(stream.stream(), [&](const Block& block) {
      return waits || settled(block, stream.stream());
    });
    const Layout layout(snapshot.segments, device_, stream.stream(), blocks);
    if (layout.serves(bytes, left)) {
      return true;
    }
    if (!may) {
      return false;
    }
    const std::vector<Move> moves = layout.join(bytes, left, waits ? kTrialsThatWait : kTrials);
    // Blocks can be used, and storages can be freed, whenever memory is allocated.
    std::deque<Stay> stays;
    for (const Move& move : moves) {
      stays.emplace_back(registry_, *move.block);
    }
    for (const Move& move : moves) {
      if (address(move.block->memory) != move.from || !this->move(*move.block, move.to, stream)) {
        return false;
      }
    }
    return !moves.empty();
  } catch (const c10::Error&) {
    (void)cudaGetLastError(); // what failed moved nothing, and the request goes its usual way
    return false;
  }
}

std::vector<Block*> Compactor::obstacles(
    const std::vector<compat::cca::SegmentInfo>& segments,
    size_t bytes,
    size_t left) const {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_).stream();
  const Blocks blocks = idle(stream, [](const Block&) { return true; });
  const Layout layout(segments, device_, stream, blocks);
  return layout.obstacles(bytes, left, [this](const Block& block) { return policy_.cost(block); });
}

bool Compactor::move(Block& block, size_t to, c10::cuda::CUDAStream stream) {
  const c10::cuda::CUDAGuard guard(device_);
  // The native allocator takes what fits best, and that may be memory that is to be joined: it is
  // kept until the block has moved.
  const Pools::Outside outside(pools_, native_, stream.stream());
  std::vector<Loan> passed;
  while (native_.largest_free(device_) >= rounded(block.size)) {
    Loan loan{native_.allocate(block.size)};
    mover_.taken(loan.memory.get(), block.size);
    if (to != 0 && address(loan.memory) != to) {
      passed.push_back(std::move(loan));
      continue;
    }
    // may_move() first, because it can pause, and the block can be used then.
    if (!may_move() || !block.stays.only(Reason::Lms) || !movable(block, stream.stream())) {
      return false;
    }
    return mover_.relocate(block, std::move(loan.memory));
  }
  return false;
}

} // namespace torch::cuda::lms

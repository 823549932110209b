#pragma once

#include <torch/csrc/cuda/lms/room/runs.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace torch::cuda::lms {

// A block's way from one address of the device to another one.
struct Move {
  Block* block;
  size_t from;
  size_t to;
};

// The memory from which the native allocator serves one stream, on which moves are tried before
// they are made. It has only what is large, and `movable` are the blocks that may move.
class Layout {
 public:
  Layout(
      const std::vector<compat::cca::SegmentInfo>& segments,
      c10::DeviceIndex device,
      cudaStream_t stream,
      const Blocks& movable);

  // Whether the native allocator can serve a request of this number of bytes, if it may map so many
  // bytes of pages for it.
  bool serves(size_t bytes, size_t left) const;

  // Moves, in their order, after which it can. A window is vacated: addresses side by side, so that
  // the fewest bytes move. What is in it moves to free memory elsewhere. If that is in pieces that
  // are too small, they are joined first in the same way, by moving what is smaller. Windows for
  // which pages have to be mapped come last. Tries at most so many windows, and fewer in a large
  // layout: each takes some microseconds of the host's time. Returns none if no way is found.
  std::vector<Move> join(size_t bytes, size_t left, int trials) const;

  // Blocks whose page-out makes such moves possible: those in a window for which there is no free
  // memory elsewhere. `cost` is that of a block's page-out, in bytes. Takes the window that costs
  // least. None if that is as much as the request.
  std::vector<Block*>
  obstacles(size_t bytes, size_t left, const std::function<size_t(const Block&)>& cost) const;

 private:
  struct Search;

  std::vector<Run> windows(size_t bytes, size_t left) const;
  std::vector<Run> cheapest(size_t bytes, size_t left, size_t count) const;
  bool make_piece(size_t bytes, size_t left, int depth, Search& search);
  bool vacate(const Run& run, int depth, Search& search);
  std::vector<Block*> clear(const Run& run);
  std::vector<size_t> begin(const Run& run, int window);
  size_t hole(size_t bytes) const;
  size_t at(size_t address) const;
  void move(size_t from, size_t to);
  void tidy();

  std::vector<Range> ranges_; // by segment, each by address
  std::vector<Move> moves_; // that led here
};

} // namespace torch::cuda::lms

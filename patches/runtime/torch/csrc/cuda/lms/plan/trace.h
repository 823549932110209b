#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// The planner: a library on its own, with no torch and no CUDA in it.
namespace torch::cuda::lms::plan {

// An operator's place in its iteration. Places from the number of operators on are those of the
// next iteration.
using Place = int64_t;

struct Access {
  uint32_t block; // index into Trace::blocks
  bool writes = false;
};

struct Operator {
  double seconds = 0; // on the device, with everything it needs in place
  std::vector<Access> accesses;
  std::string name; // for messages
};

struct Block {
  int64_t bytes = 0;
  // A temporary block is allocated before one operator and freed after another one of the same
  // iteration. A persistent block has neither.
  Place allocated = -1;
  Place freed = -1;
  // What its transfers move, as a share of what a copy does: less than 1 if it is compressed.
  double share = 1;
  // It cannot leave, because something else than operators has its address.
  bool stays = false;

  bool persistent() const {
    return allocated < 0;
  }
};

// One iteration on one device, in the order in which the host issued its operators. It is taken
// to repeat for ever.
struct Trace {
  std::vector<Operator> operators;
  std::vector<Block> blocks;
  int64_t unmanaged = 0; // bytes in use besides, all the time

  Place size() const {
    return static_cast<Place>(operators.size());
  }
  double seconds() const; // of all operators
  size_t events() const; // operators and accesses

  // What is wrong with it, or nothing.
  std::string problem() const;
};

// What the iteration runs on.
struct Machine {
  int64_t limit = 0; // bytes of device memory
  double out_rate = 0; // bytes per second, to the host
  double in_rate = 0; // bytes per second, from the host
  double overhead = 0; // seconds that each transfer takes besides
  // What compressed bytes reach of these rates.
  double out_pace = 1;
  double in_pace = 1;

  double out_seconds(const Block& block) const {
    return overhead + bytes_over(block, out_pace) / out_rate;
  }
  double in_seconds(const Block& block) const {
    return overhead + bytes_over(block, in_pace) / in_rate;
  }

  std::string problem() const;

 private:
  // As many bytes as a copy moves in the time of the transfer.
  static double bytes_over(const Block& block, double pace) {
    const auto bytes = static_cast<double>(block.bytes);
    return block.share < 1 ? bytes * block.share / pace : bytes;
  }
};

} // namespace torch::cuda::lms::plan

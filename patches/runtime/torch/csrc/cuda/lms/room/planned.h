#pragma once

#include <torch/csrc/cuda/lms/block/block.h>

#include <cstddef>
#include <optional>

namespace torch::cuda::lms {

// Where on the device a plan wants memory, see Places. Used under the LMS mutex.
class Planned {
 public:
  struct Piece {
    size_t address;
    size_t bytes; // to request: more than the block has
  };

  // For a block that is paged in, and for the next request of the program, of this number of bytes.
  virtual std::optional<Piece> piece_of(const Block& block) const = 0;
  virtual std::optional<Piece> piece_of_next(size_t bytes) = 0;

  // Whether a piece that was needed at once could be had.
  virtual void took(bool had) = 0;

 protected:
  ~Planned() = default;
};

} // namespace torch::cuda::lms

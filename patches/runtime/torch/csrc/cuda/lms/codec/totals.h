#pragma once

#include <torch/csrc/cuda/lms/codec/kind.h>

#include <cstdint>

namespace torch::cuda::lms::codec {

// What was packed, by kind.
class Totals {
 public:
  struct Row {
    uint64_t blocks;
    uint64_t bytes; // of the blocks
    uint64_t written; // bytes to host memory

    // Written per byte; 1 if there is nothing.
    double ratio() const {
      return bytes > 0 ? static_cast<double>(written) / static_cast<double>(bytes) : 1;
    }
  };

  void add(Kind kind, uint64_t bytes, uint64_t written) {
    Row& row = rows_[static_cast<int>(kind)];
    ++row.blocks;
    row.bytes += bytes;
    row.written += written;
  }

  const Row& of(Kind kind) const {
    return rows_[static_cast<int>(kind)];
  }

  Row sum() const {
    Row all{};
    for (const Row& row : rows_) {
      all.blocks += row.blocks;
      all.bytes += row.bytes;
      all.written += row.written;
    }
    return all;
  }

  void reset() {
    *this = {};
  }

 private:
  Row rows_[kKinds] = {};
};

} // namespace torch::cuda::lms::codec

#pragma once

#include <torch/csrc/cuda/lms/codec/kind.h>

namespace torch::cuda::lms {

// What is known of a block's data, for compression.
struct Origin {
  const char* writer = nullptr; // the last operator that may have written it
  codec::Kind kind = codec::Kind::None; // what kind of data operators took it for
};

} // namespace torch::cuda::lms

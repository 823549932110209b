#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>

namespace torch::cuda::lms {

// What autograd's engine tells of the node that this thread runs.
struct Node {
  const void* id = nullptr; // null: it runs none
  int64_t pass = -1; // which backward pass it is part of
  bool hooks = false; // it has hooks of others, which run after its function
  // The nodes that get its results on another stream. When a second result is added to the first,
  // the engine reads the address of the first, which no operator in between need have used.
  c10::SmallVector<const void*, 4> consumers;

  static Node current();

  // Keeps something until this thread's backward pass ends, however it ends.
  static void keep(std::shared_ptr<void> token);
};

} // namespace torch::cuda::lms

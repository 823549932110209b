#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>

namespace torch::cuda::lms {

// Information of the autograd engine about the node that this thread runs.
struct Node {
  const void* id = nullptr; // null if it runs none
  int64_t pass = -1; // the backward pass that the node belongs to
  bool hooks = false; // post hooks of others run after its function
  // The nodes that get its results on another stream. When the engine adds a second result to the
  // first, it reads the address of the first, and possibly no operator has used that before.
  c10::SmallVector<const void*, 4> consumers;

  static Node current();

  // Keeps an object until this thread's backward pass ends, even if the pass fails.
  static void keep(std::shared_ptr<void> token);
};

} // namespace torch::cuda::lms

#pragma once

#include <torch/csrc/cuda/lms/block/block.h>

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace torch::cuda::lms {

// Blocks of results that an autograd node has passed to nodes of other streams. They stay on the
// device from the end of the first node to the start of the second one; or, if the pass fails or
// the second node is not part of it, to the end of the backward pass. There is one Crossing for
// each backward pass. Used under the LMS mutex.
class Crossing {
 public:
  // Whether there is a Crossing. Can be called without the mutex.
  static bool any();

  // The Crossing of a backward pass; null if nothing has crossed there.
  static std::shared_ptr<Crossing> find(int64_t pass);
  static std::shared_ptr<Crossing> make(int64_t pass);

  // Takes the mutex, and releases the blocks that have not arrived.
  ~Crossing();
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;

  void leave_for(const void* consumer, Block& block);

  // Returns the blocks that were passed to a node. They still have their reason to stay, and the
  // caller has to remove it.
  std::vector<Block*> arrived(const void* consumer);

 private:
  explicit Crossing(int64_t pass) : pass_(pass) {}

  const int64_t pass_;
  std::unordered_multimap<const void*, Block*> blocks_; // by consumer
};

} // namespace torch::cuda::lms

#pragma once

#include <torch/csrc/cuda/lms/block/block.h>

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace torch::cuda::lms {

// Blocks of results that autograd's nodes have handed to nodes of other streams: they stay from the
// end of the one to the begin of the other, or to the end of the backward pass, if it fails or that
// node is not part of it. One for each pass. Under the LMS mutex.
class Crossing {
 public:
  // Whether there is one. Without the mutex.
  static bool any();

  // That of a pass; null if nothing has crossed there.
  static std::shared_ptr<Crossing> find(int64_t pass);
  static std::shared_ptr<Crossing> make(int64_t pass);

  // Takes the mutex, and lets all go that have not arrived.
  ~Crossing();
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;

  void leave_for(const void* consumer, Block& block);

  // The blocks on their way to a node, which still stay: the caller lets them go.
  std::vector<Block*> arrived(const void* consumer);

 private:
  explicit Crossing(int64_t pass) : pass_(pass) {}

  const int64_t pass_;
  std::unordered_multimap<const void*, Block*> blocks_; // by consumer
};

} // namespace torch::cuda::lms

#pragma once

#include <c10/core/StorageImpl.h>

namespace torch::cuda::lms {

// storage[begin:end] is a storage of its own, with the address of a part of another one's memory.
// Its deleter is PyTorch's, and the context of its DataPtr is the other storage, which it keeps
// alive. Used under the LMS mutex.
class Slices {
 public:
  // Learns what PyTorch makes slices with, from one of them. Old versions have a deleter for each
  // type of storage.
  static void learn(c10::StorageImpl& slice, const c10::StorageImpl& sliced);

  // The storage that has the memory: the one that was sliced, or the storage itself.
  static c10::StorageImpl& whole(c10::StorageImpl& storage);
};

} // namespace torch::cuda::lms

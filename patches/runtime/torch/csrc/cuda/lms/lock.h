#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

struct Block;

// The LMS mutex. One for the process: a peer copy pins blocks of two devices.
//
// Lock order: GIL (if held at all) -> LMS mutex -> the native allocator's own
// mutex -> the CUDA driver. Nothing under the LMS mutex takes the GIL.
//
// Freeing a storage needs the mutex, and a thread that holds it can cause one
// to be freed (it drops the last reference; the native allocator runs a
// callback that frees). Such blocks wait until the unlock, and references are
// dropped after it: a storage that Python knows takes the GIL then.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // Whether this thread has the mutex.
  static bool held();

  // The two below need the mutex held by this thread.
  static void free_later(Block* block);
  static void drop_later(c10::intrusive_ptr<c10::StorageImpl> storage);
};

} // namespace torch::cuda::lms

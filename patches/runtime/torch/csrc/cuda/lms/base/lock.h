#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace torch::cuda::lms {

// The LMS mutex. One for the process: a peer copy uses blocks of two devices.
//
// Lock order: GIL (if held at all) -> LMS mutex -> the pools' mutex -> the native allocator's own
// mutex -> the CUDA driver. Nothing under the LMS mutex takes the GIL, and nothing waits under it
// for a device: what runs there may wait, through NCCL, for work that another thread can only
// issue with this mutex. Whoever has to wait pauses (below). Not so where CUDA has refused a call,
// and while a graph is captured, whose operators wait for page-ins on the host.
//
// Freeing a storage needs the mutex, and a thread that holds it can cause one to be freed (it drops
// the last reference; the native allocator runs a callback that frees). Such blocks wait until the
// unlock, and references are dropped after it: a storage that Python knows takes the GIL then.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // Whether this thread has the mutex.
  static bool held();

  // Gives the mutex up for a scope, in which the thread may wait. Blocks that it does not keep
  // resident can move and die meanwhile: a function that can pause says so, and its caller checks
  // again what it knew before.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };

  // These need the mutex held by this thread.

  // Gives the mutex up until another thread calls notify().
  static void wait();
  static void notify();

  // Calls the function at the unlock, with the mutex held.
  static void later(void (*function)(void*), void* context);
  static void drop_later(c10::intrusive_ptr<c10::StorageImpl> storage);

  // Whether this is a child of a process that used LMS. It has no device: what was there is left
  // alone.
  static bool forked();
};

} // namespace torch::cuda::lms

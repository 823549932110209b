#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace torch::cuda::lms {

// The LMS mutex. One for the process: a peer copy uses blocks of two devices.
//
// Lock order: GIL, or the native allocator's own mutex (if held at all) -> LMS mutex -> the pools'
// mutex -> the CUDA driver. Nothing under the LMS mutex takes the GIL or calls the native allocator
// (see native.h), and nothing waits under it for a device: what runs there may wait, through NCCL,
// for work that another thread can only issue with this mutex. Whoever has to wait pauses (below).
// Not so where CUDA has refused a call, and while a graph is captured, whose operators wait for
// page-ins on the host.
//
// Freeing a storage needs the mutex, and a thread that holds it can cause one to be freed, by
// dropping the last reference. Such blocks wait until the unlock. References are dropped after it,
// because a storage that Python knows takes the GIL then; so is memory, which goes back to the
// native allocator.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // Whether this thread has the mutex.
  static bool held();

  // Gives the mutex up for a scope, in which the thread may wait; does nothing for a thread that
  // does not have it. Blocks that it does not keep resident can move and die meanwhile: a function
  // that can pause says so, and its caller checks again what it knew before. Memory to drop is
  // dropped before the scope.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    const bool held_;
  };

  // These need the mutex held by this thread.

  // Gives the mutex up until another thread calls notify().
  static void wait();
  static void notify();

  // Calls the function at the unlock, with the mutex held.
  static void later(void (*function)(void*), void* context);
  static void drop_later(c10::intrusive_ptr<c10::StorageImpl> storage);
  static void drop_later(at::DataPtr memory);

  // Whether this is a child of a process that used LMS. It has no device: what was there is left
  // alone.
  static bool forked();
};

} // namespace torch::cuda::lms

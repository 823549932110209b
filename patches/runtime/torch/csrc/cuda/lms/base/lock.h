#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace torch::cuda::lms {

// The LMS mutex. There is one for the process, because a peer copy uses blocks of two devices.
//
// Lock order: GIL, or the native allocator's own mutex (if held at all) -> LMS mutex -> the pools'
// mutex -> the CUDA driver. Code that holds the LMS mutex neither takes the GIL nor calls the
// native allocator (see native.h). It also does not wait for a device: the device's work may wait,
// through NCCL, for work that another thread can only issue with this mutex. Code that has to wait
// uses Pause (below). There are two exceptions, which wait with the mutex held: the handling of a
// CUDA call that failed, and the capture of a graph, during which operators wait for page-ins on
// the host.
//
// Freeing a storage needs the mutex, but a thread that already holds it can free a storage, too, by
// dropping the last reference. The blocks of such storages are handled when the mutex is unlocked.
// drop_later() defers the release of references and of memory until after the unlock: dropping a
// storage that Python knows takes the GIL, and memory goes back to the native allocator.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // Whether this thread holds the mutex.
  static bool held();

  // Releases the mutex for a scope, so that the thread may wait. Does nothing if the thread does
  // not hold the mutex. During the pause, blocks without a reason to stay can be moved or deleted.
  // Therefore a function that can pause says so, and its caller has to check again what it knew
  // before. Memory that was passed to drop_later() is freed at the start of the pause.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    const bool held_;
  };

  // The calling thread must hold the mutex for the functions below.

  // Releases the mutex until another thread calls notify().
  static void wait();
  static void notify();

  // Calls the function at the unlock, while the mutex is still held.
  static void later(void (*function)(void*), void* context);
  static void drop_later(c10::intrusive_ptr<c10::StorageImpl> storage);
  static void drop_later(at::DataPtr memory);

  // Whether this process was forked from one that used LMS. Such a process cannot use the device,
  // so LMS does not touch memory that it inherited.
  static bool forked();
};

} // namespace torch::cuda::lms

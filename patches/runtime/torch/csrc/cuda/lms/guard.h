#pragma once

#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace torch::cuda::lms {

class Pager;

// The operator guard: from the start of an operator to the end of the outermost
// one of its thread, the storages it uses are on the device and stay there.
// Registered as a global RecordFunction callback, so it sees the operators of
// autograd's threads, too.
class Guard {
 public:
  static void install();
  static void remove();

  // A graph's capture begins in this thread's operator, a compiled region: what
  // it uses stays on the device, because the graph replays addresses that no
  // operator inside shows. With the mutex held.
  static void keep_pinned(Pager& pager);

  // The name of this thread's outermost operator, or null.
  static const char* current_operator();

  // A request of this thread's operator is about to fail for want of memory. If
  // the operator catches that and goes on, as cuDNN's convolutions do with an
  // algorithm that needs less, the pager hears of it.
  static void refused(Pager& pager, size_t bytes);

  // Throws c10::OutOfMemoryError if an input of this thread's operator could
  // not be paged in. A RecordFunction callback cannot throw; the operator's
  // next allocation can.
  static void check_failed();

  // Treats what follows in this thread as one operator that may write all these
  // storages. For code that reaches data without operators (torch.compile).
  // Throws c10::OutOfMemoryError.
  static void begin_region(c10::StorageImpl* const* storages, size_t count);
  static void end_region();

  // Makes the storage's address valid: until the end of the operator that this
  // thread is in, or, outside of one, until lms_release_address().
  static void address_taken(c10::StorageImpl& storage);
};

} // namespace torch::cuda::lms

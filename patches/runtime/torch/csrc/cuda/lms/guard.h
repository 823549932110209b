#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace torch::cuda::lms {

class Pager;

// The operator guard: from the start of an operator to the end of the outermost
// one of its thread, the storages it uses are on the device and stay there.
class Guard {
 public:
  enum class Kind {
    // Touches no bytes itself: a view, a metadata operator, or one that is only
    // made of other operators, each of which is guarded by itself.
    Transparent,
    // Made of other operators, but looks at its inputs' addresses, too.
    Composite,
    // May have the address of everything that it uses, until its end.
    Opaque,
  };
  struct Input {
    c10::StorageImpl* storage;
    bool write;
  };
  using Inputs = c10::SmallVector<Input, 8>;

  // Starts and ends what tells the guard of operators (observer.cpp), with the
  // mutex held.
  static void install();
  static void remove();

  // An operator of this thread begins, and ends. Neither throws.
  static void begin(Kind kind, const char* name);
  static void end();

  // What the operator uses is brought to the device and pinned. Does not throw:
  // what could not be brought throws when it is accessed, or at the next
  // allocation.
  static void inputs(const Inputs& inputs, bool collective);

  // DistributedDataParallel's reducer may compare them with other storages.
  static void compared(const Inputs& inputs);

  // Whether the operator that is about to end should say what it made.
  static bool wants_outputs();
  static void outputs(const Inputs& outputs);

  // Whether a storage that LMS will manage was made just now. Without the mutex:
  // nobody else has seen it. The others that are large enough are inputs, and
  // have their blocks; smaller ones may get theirs from another thread at this
  // moment.
  static bool fresh(const Input& output);

  // A graph's capture begins in this thread's operator, a compiled region: what
  // it uses stays on the device, because the graph replays addresses that no
  // operator inside shows. With the mutex held.
  static void keep_pinned(Pager& pager);

  // The name of this thread's outermost operator, or null.
  static const char* current_operator();

  // A request of this thread's operator is about to fail for want of memory; and
  // an operator is about to end. If it has caught that and goes on, as cuDNN's
  // convolutions do with an algorithm that needs less, the pager hears of it.
  static void refused(Pager& pager, size_t bytes);
  static void check_refused();

  // Throws c10::OutOfMemoryError if an input of this thread's operator could
  // not be paged in. A RecordFunction callback cannot throw; the operator's
  // next allocation can.
  static void check_failed();

  // Treats what follows in this thread as one operator that may write all these
  // storages. For code that reaches data without operators (torch.compile).
  // Throws c10::OutOfMemoryError.
  static void begin_region(c10::StorageImpl* const* storages, size_t count);
  static void end_region();

  // Makes the storage's address valid, to write or only to read: until the end of
  // the operator that this thread is in, or, outside of one, until
  // lms_release_address(), for both.
  static void address_taken(c10::StorageImpl& storage, bool write);

  // Whether this thread's operators have pinned the block, and know of a write.
  // Without the mutex: what they have pinned does not go away meanwhile.
  static bool has_pinned(const void* block, bool write);
};

} // namespace torch::cuda::lms

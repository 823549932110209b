#pragma once

#include <torch/csrc/cuda/lms/block/residency.h>
#include <torch/csrc/cuda/lms/block/state.h>
#include <torch/csrc/cuda/lms/compat/compat.h>
#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/kernel/checker.h>
#include <torch/csrc/cuda/lms/record/recorder.h>
#include <torch/csrc/cuda/lms/stream/event.h>
#include <torch/csrc/cuda/lms/stream/timeline.h>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/SmallVector.h>

#include <list>
#include <optional>

namespace torch::cuda::lms {

class Pager;
class Registry;

// The last use of a block on one stream.
struct Use {
  Timeline* timeline;
  uint64_t position;
  // Told by record_stream(): the stream uses the block in ways that no
  // operator shows, so everything issued on it counts.
  bool recorded;
};

// The native allocator's rounding, which its statistics count.
inline size_t rounded(size_t bytes) {
  return (bytes + 511) / 512 * 512;
}

// A block's bytes in pinned host memory.
struct HostCopy {
  HostBuffer buffer;
  std::optional<Checker::Slot> hash; // of the bytes, on the device; none without kernels
  EventRef touched; // behind the last work that reads or writes the buffer, or uses the hash

  explicit operator bool() const {
    return static_cast<bool>(buffer);
  }
};

// One managed storage: its bytes, wherever they are, and what LMS knows of it.
// The storage's DataPtr has this as its context, so the block lives as long as
// the storage, or longer while an operator uses it (its state is Freed then).
// Guarded by the LMS mutex.
struct Block {
  Block(Registry& registry, Pager& pager, at::DataPtr native, size_t bytes)
      : registry(registry),
        pager(pager),
        device(native.device()),
        size(bytes),
        memory(std::move(native)) {}

  Registry& registry;
  Pager& pager;
  const c10::Device device;
  const size_t size; // bytes
  StateMachine state{State::Resident};

  at::DataPtr memory; // from the native allocator; empty when paged out
  HostCopy host; // kept after a page-in while it is true
  bool dirty = true; // an operator may have changed the bytes since they were last copied

  // The two directions have an event each: who reads need not wait for a copy to the host.
  EventRef left; // a copy to the host has read `memory`
  EventRef arrived; // a copy from the host has written `memory`

  // The stream whose order the native allocator frees in: the one that was
  // current at the allocation. Unknown for a storage older than LMS.
  std::optional<c10::cuda::CUDAStream> home;
  bool moved_home = false; // it was unknown, and a page-in chose another one
  c10::SmallVector<Use, 2> uses;
  c10::SmallVector<cudaStream_t, 2> ordered; // streams that already wait for `arrived`

  // Weak, because the user decides when a storage dies; checked before each
  // move, because its DataPtr can be given to another (set_data_ptr, resize_).
  std::optional<compat::WeakStorage> owner;

  Residency stays;
  uint64_t collective = 0; // when a collective last used it, see Mover::finished()
  bool counted = false; // an operator has used it, so LMS can move it
  bool failed = false; // could not be brought: every access throws until it is
  const char* user = nullptr; // the last operator that used it
  Recorder::Number number; // in a trace

  bool idle = false; // in the policy's list
  std::list<Block*>::iterator place;

  bool on_device() const {
    return static_cast<bool>(memory);
  }
};

} // namespace torch::cuda::lms

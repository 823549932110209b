#pragma once

#include <torch/csrc/cuda/lms/buffer.h>
#include <torch/csrc/cuda/lms/event.h>
#include <torch/csrc/cuda/lms/state.h>
#include <torch/csrc/cuda/lms/timeline.h>

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <list>
#include <optional>

namespace torch::cuda::lms {

class Pager;

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

// One managed storage: its bytes, wherever they are, and what LMS knows of it.
// The storage's DataPtr has this as its context, so the block lives as long as
// the storage, or longer while an operator has it pinned.
// Guarded by the LMS mutex.
struct Block {
  Block(Pager& pager, at::DataPtr native, size_t bytes)
      : pager(pager), device(native.device()), size(bytes), memory(std::move(native)) {}

  Pager& pager;
  const c10::Device device;
  const size_t size; // bytes
  StateMachine state{State::Resident};

  at::DataPtr memory; // from the native allocator; empty when paged out
  HostBuffer host; // pinned copy; kept after a page-in while it is true
  bool dirty = true; // device memory has changed since it was last copied
  EventRef copied; // the last transfer: of `memory`, and from or to `host`

  // The stream whose order the native allocator frees in: the one that was
  // current at the allocation. Unknown for a storage older than LMS.
  std::optional<c10::cuda::CUDAStream> home;
  bool moved_home = false; // it was unknown, and a page-in chose another one
  c10::SmallVector<Use, 2> uses;
  c10::SmallVector<cudaStream_t, 2> ordered; // streams that already wait for `copied`

  // Weak, because the user decides when a storage dies; checked before each
  // move, because its DataPtr can be given to another (set_data_ptr, resize_).
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> owner;

  uint32_t pins = 0; // operators that use it now
  uint32_t holds = 0; // resident() and friends
  bool exported = false; // its address was handed out: stays until released
  bool collective = false; // last used by a collective, which runs on after the call
  bool unfinished = false; // the same, and since then only read: the collective may read it still
  bool compared = false; // DistributedDataParallel's reducer compares its storage with others
  bool counted = false; // an operator has used it, so LMS can move it
  bool dead = false; // the storage died while pinned
  bool failed = false; // could not be brought: every access throws until it is

  bool idle = false; // in the policy's list
  std::list<Block*>::iterator place;

  bool held() const {
    return holds > 0 || exported;
  }
};

} // namespace torch::cuda::lms

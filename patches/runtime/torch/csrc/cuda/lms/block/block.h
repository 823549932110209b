#pragma once

#include <torch/csrc/cuda/lms/block/origin.h>
#include <torch/csrc/cuda/lms/block/residency.h>
#include <torch/csrc/cuda/lms/block/state.h>
#include <torch/csrc/cuda/lms/codec/kind.h>
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
#include <set>

namespace torch::cuda::lms {

class Pager;
class Registry;

// The last use of a block on one stream.
struct Use {
  Timeline* timeline;
  uint64_t position;
  // Set by record_stream(): the stream uses the block in ways that operators do not show, so all
  // work that was issued on it counts as a use.
  bool recorded;
};

// A size as the native allocator rounds it up, and as its statistics count it.
inline size_t rounded(size_t bytes) {
  return (bytes + 511) / 512 * 512;
}

// A block's bytes in pinned host memory.
struct HostCopy {
  HostBuffer buffer;
  size_t spare = 0; // bytes at the end of the buffer that are needed only while it is packed into
  codec::Kind packed = codec::Kind::None; // how the bytes are packed; None: as they are
  size_t pieces = 0; // where the pieces end in the buffer, if it was packed in pieces
  std::optional<Like> unseen; // what was packed, until Packing has seen how far it has shrunk
  std::optional<Checker::Slot> hash; // of the bytes, on the device; none without kernels
  // Recorded after the last work that reads or writes the buffer, or uses the hash.
  EventRef touched;

  explicit operator bool() const {
    return static_cast<bool>(buffer);
  }
};

// One managed storage: where its bytes are, and everything LMS knows about it. The block is the
// context of the storage's DataPtr. Therefore it lives as long as the storage, or longer if an
// operator still uses it; its state is Freed then. Guarded by the LMS mutex.
struct Block {
  Block(Registry& registry, Pager& pager, at::DataPtr native, size_t bytes)
      : registry(registry),
        pager(pager),
        device(native.device()),
        size(bytes),
        memory(std::move(native)),
        known(memory.get()) {}

  Registry& registry;
  Pager& pager;
  const c10::Device device;
  const size_t size; // bytes
  StateMachine state{State::Resident};

  at::DataPtr memory; // from the native allocator; empty when paged out
  const void* known; // its address at first, or when the program was last told
  HostCopy host; // kept after a page-in for as long as it is valid
  bool dirty = true; // an operator may have changed the bytes since the last copy to the host

  // There is one event for each direction, so that readers do not have to wait for a copy to the
  // host.
  EventRef left; // complete when a copy to the host has read `memory`
  EventRef arrived; // complete when a copy from the host has written `memory`

  // The home stream: the stream that was current when the storage was allocated. The native
  // allocator reuses the memory in the order of this stream. It is unknown for a storage that was
  // adopted.
  std::optional<c10::cuda::CUDAStream> home;
  bool moved_home = false; // home was unknown or external, and a page-in chose another stream
  c10::SmallVector<Use, 2> uses;
  c10::SmallVector<cudaStream_t, 2> ordered; // streams that already wait for `arrived`

  // A weak reference, because the user decides how long the storage lives. It is checked before
  // each move, because the DataPtr can be moved to another storage (set_data_ptr, resize_).
  std::optional<compat::WeakStorage> owner;

  Residency stays;
  // Of the operators that use it at present, if all run on one thread; null otherwise.
  const void* thread = nullptr;
  std::set<c10::DeviceIndex> abroad; // other devices of which a stream was recorded for it
  uint64_t collective = 0; // number of the last collective that used it, see Mover::finished()
  bool counted = false; // an operator has used it, so LMS can move it
  // Accesses to the storage throw, until an operator brings the block: its bytes are not on the
  // device, or may not have arrived yet.
  bool hidden = false;
  const char* user = nullptr; // the last operator that used it
  Origin origin;
  Recorder::Number number; // in the user's recording
  Recorder::Number followed; // in LMS's own
  uint32_t slot = 0; // the number under which the follower has the block; 0 if it does not
  uint64_t next_use = 0; // when an operator uses it next, as the policy counts; 0 if not known
  bool packs = true; // false: the last plan that copied it had no use for its compression
  // When the plan expects the transfer that is in flight to have ended, in the same way. The host
  // cannot ask the device, because it issues work far ahead of it.
  uint64_t busy_until = 0;

  bool idle = false; // whether it is in the policy's list
  std::list<Block*>::iterator place;

  bool on_device() const {
    return static_cast<bool>(memory);
  }
};

} // namespace torch::cuda::lms

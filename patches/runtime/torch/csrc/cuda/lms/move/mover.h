#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/move/freed.h>
#include <torch/csrc/cuda/lms/move/limbo.h>
#include <torch/csrc/cuda/lms/move/strays.h>
#include <torch/csrc/cuda/lms/move/supply.h>
#include <torch/csrc/cuda/lms/move/transfer.h>
#include <torch/csrc/cuda/lms/record/recorders.h>
#include <torch/csrc/cuda/lms/stream/timelines.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch::cuda::lms {

namespace compat {
class Range;
}

// Moves the bytes of one device's blocks to the host and back, and orders every move with the
// streams that use the blocks. It allocates no device memory for blocks. It waits for the device
// only where a comment says so, or after CUDA has refused a call. Used under the LMS mutex.
class Mover {
 public:
  Mover(
      c10::DeviceIndex device,
      const Settings& settings,
      const Native& native,
      Registry& registry,
      Stats& stats,
      Recorders& recorders);
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // ---- streams and uses ----

  Timeline& timeline(c10::cuda::CUDAStream stream) {
    return timelines_.of(stream);
  }

  // Records that an operator has used the block, at a position on its stream.
  static void used(Block& block, Timeline& timeline, uint64_t position);
  // Records that an operator starts to use the block, if the stream is not the block's home stream.
  // This is recorded at the start, because the block can be freed before the operator or its node
  // ends.
  void uses(Block& block, c10::cuda::CUDAStream stream);
  // Records that a stream uses the block in ways that operators do not show. Pauses the mutex.
  void record_stream(Block& block, c10::cuda::CUDAStream stream);

  // Makes the stream wait for the block's page-in. During a capture, the host waits instead, for
  // all transfers of the block.
  void order(Block& block, c10::cuda::CUDAStream stream, bool captured);

  // Waits until the block's page-in has ended, for uses that are not seen. The block must have a
  // reason to stay. Pauses the mutex.
  void finish(Block& block);

  // An operator on the stream may change the bytes: the stream waits for a copy to the host that is
  // in flight, and the host copy becomes invalid.
  void wrote(Block& block, cudaStream_t stream);
  // The same for unseen writes at a later time.
  void wrote(Block& block);

  // Records that a collective uses the block, on a stream that is not known, also after its call
  // has returned.
  void collective(Block& block) {
    block.collective = ++collectives_;
  }
  bool finished(const Block& block) const {
    return block.collective <= finished_;
  }
  // Waits for the device. Pauses the mutex.
  void finish_collectives();

  // ---- page-out ----

  enum class Outcome {
    Moved,
    Gone, // being freed, or its DataPtr was moved to another storage: no longer a candidate
    Failed, // no host memory, or CUDA refused: the block is unchanged
    Busy, // host memory or kernels are not there yet: call Supply::provide(), then try again
    Unfinished, // a collective may still use it: call finish_collectives(), then try again
  };
  // Pages out on demand: takes host memory, and then calls start_page_out() and finish_page_out().
  Outcome page_out(Block& block);

  // Copies a block to the host that Room::may_copy() allows, and keeps its memory, so that a later
  // page-out needs no copy.
  // The copy may wait for all that the home stream has queued. Moved means that the host has the
  // bytes. Never waits for the device.
  Outcome copy_ahead(Block& block);

  // start_page_out() starts a copy to the host; the block can still be used. The pace says whether
  // its hash may run on the home stream, or beside what is queued there. finish_page_out() gives up
  // the device memory, ordered after the copy and after everything that is queued on the home
  // stream. cancel_page_out() keeps the device memory instead; wrote() makes a later write wait for
  // the copy. The first two return false if CUDA refused; the block is unchanged then.
  bool start_page_out(Block& block, Checker::Pace pace);
  bool finish_page_out(Block& block, c10::StorageImpl& storage);
  void cancel_page_out(Block& block);

  // ---- page-in ----

  // Tells the native allocator which other streams use the block, for the block's new memory. The
  // block is PagingIn. Pauses the mutex.
  void share(const Block& block, const at::DataPtr& memory);
  // Tells it that any stream that LMS knows may use the block from now on without being seen. For a
  // block whose home stream LMS has chosen, and whose storage the caller holds. Pauses the mutex.
  void share_with_all(Block& block);

  // Starts a copy into the memory. The block must be PagingIn, and stays so until order() is
  // called. It stays hidden, too, because not every use waits for the copy. Throws c10::Error; the
  // block is PagedOut then, and the memory still belongs to the caller.
  void page_in(Block& block, at::DataPtr&& memory);

  // ---- on the device ----

  // Moves an idle block to other memory of its home stream, in the order of that stream, which
  // waits for transfers of the block. The block must not be used on other streams. If that is not
  // possible, or CUDA refused, returns false: the block is unchanged, and the memory is dropped.
  bool relocate(Block& block, at::DataPtr&& memory);

  // Call this when the native allocator has handed out memory, for a block or for anything else.
  // page_in() does so for its own memory.
  void taken(const void* memory, size_t bytes) {
    freed_.taken(memory, rounded(bytes));
  }
  // Call this when it has got back memory that was used on the current stream at most.
  void left(const void* memory, size_t bytes) {
    freed_.freed(memory, bytes, timeline(c10::cuda::getCurrentCUDAStream(device_)).mark());
  }
  // Call this when it may have handed out memory without a call of taken().
  void forget_freed() {
    freed_.forget();
  }

  // How fast page-outs and page-ins are, in bytes per second: of blocks that are compressed or not,
  // if large ones were, else of the faster way; 0 if not known yet.
  double out_rate(bool compressed) {
    return transfer_.out_rate(engine(compressed));
  }
  double in_rate(bool compressed) {
    return transfer_.in_rate(engine(compressed));
  }
  // That of large copies to the host; 0 as long as there was none.
  double copy_out_rate() {
    return transfer_.copy_out_rate();
  }

  // ---- release ----

  // Releases the memory of a block whose storage was freed, in order with the streams that use it.
  // Never throws.
  void discard(Block& block, bool captured) noexcept;

  // Releases memory in limbo and hashes that could not be released before because the device used
  // them. Must not be called while a graph is captured.
  void collect();

  Limbo& limbo() {
    return limbo_;
  }
  const Limbo& limbo() const {
    return limbo_;
  }

  // Waits for all work of the device, or of another one. Pauses the mutex.
  void synchronize() {
    synchronize(device_);
  }
  static void synchronize(c10::DeviceIndex device);

  Supply& supply() {
    return supply_;
  }
  const Supply& supply() const {
    return supply_;
  }

  // Whether anything has been paged out so far.
  bool under_pressure() const {
    return pressure_;
  }
  // Why the last page-out failed; empty if it did not.
  const std::string& trouble() const {
    return trouble_;
  }
  void trouble(std::string text) {
    trouble_ = std::move(text);
  }

 private:
  Checker& checker() {
    return supply_.hashes().checker();
  }
  template <class F>
  Outcome with_storage(Block& block, bool release, F move);
  void wait_for(const EventRef& transfer, cudaStream_t stream);
  void show(compat::Range& range, const char* transfer, const Block& block) const;
  bool checked(const Block& block) const;
  bool hashes_in_line(const Block& block, Checker::Pace pace) const;
  void copy_out(Block& block);
  void copy_in(Block& block, void* memory);
  size_t copy_bytes(const Block& block) const;
  static Transfer::Engine engine(bool compressed) {
    return compressed ? Transfer::Engine::Kernels : Transfer::Engine::Copies;
  }
  static Transfer::Engine engine_of(const Block& block);
  void behind_uses(Block& block, cudaStream_t stream, bool everything);
  EventRef end_of_uses(Block& block);
  void leave_memory(const Block& block, EventRef last_use);
  void revert(Block& block);
  void keep_until(const EventRef& done, Block& block, std::optional<c10::cuda::CUDAStream> home);
  bool matches(const Block& block);

  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  Registry& registry_;
  Stats& stats_;
  Recorders& recorders_;

  Transfer transfer_;
  Supply supply_;
  FreedMemory freed_;
  Timelines timelines_;
  Strays strays_;
  Limbo limbo_;
  uint64_t collectives_ = 0; // number of collectives called so far
  uint64_t finished_ = 0; // the collectives up to this number have ended
  bool pressure_ = false;
  std::string trouble_;
};

} // namespace torch::cuda::lms

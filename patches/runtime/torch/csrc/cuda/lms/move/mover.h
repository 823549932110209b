#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/host/arena.h>
#include <torch/csrc/cuda/lms/kernel/checker.h>
#include <torch/csrc/cuda/lms/move/freed.h>
#include <torch/csrc/cuda/lms/move/transfer.h>
#include <torch/csrc/cuda/lms/stream/timeline.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace torch::cuda::lms {

// Moves the bytes of one device's blocks to the host and back, and puts every move in order with
// the streams that use them. Takes no device memory for blocks, and does not wait for the device
// unless it says so, or CUDA has refused a call. Under the LMS mutex.
class Mover {
 public:
  Mover(
      c10::DeviceIndex device,
      const Settings& settings,
      const Native& native,
      Registry& registry,
      Stats& stats);
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // ---- what streams do ----

  Timeline& timeline(c10::cuda::CUDAStream stream);

  // An operator's use of a block, at a position on its stream.
  static void used(Block& block, Timeline& timeline, uint64_t position);
  // An operator that begins, on another stream than the block's own. Its use is known at once,
  // because the block can die before the operator or the node around it ends.
  void uses(Block& block, c10::cuda::CUDAStream stream);
  // A stream uses the block in ways that no operator shows. Pauses the mutex.
  void record_stream(Block& block, c10::cuda::CUDAStream stream);

  // The stream waits for the block's arrival; in a capture the host does.
  void order(Block& block, cudaStream_t stream, bool captured);

  // An operator on the stream may change the bytes: it waits for a copy of them that is under way,
  // and the host copy is no longer true.
  void wrote(Block& block, cudaStream_t stream);
  // The same for what is written later, where no operator shows it.
  void wrote(Block& block);

  // A collective uses the block, on a stream that nobody knows of, after its call has returned.
  void collective(Block& block) {
    block.collective = ++collectives_;
  }
  bool finished(const Block& block) const {
    return block.collective <= finished_;
  }
  // Waits for the device. Pauses the mutex.
  void finish_collectives();

  // ---- to the host ----

  enum class Outcome {
    Moved,
    Gone, // dying, or owned by another storage now: no candidate any more
    Failed, // no host memory, or CUDA refused: the block is as it was
    Busy, // host memory is still in use by copies: wait_for_host(), then again
    Unfinished, // a collective may still use it: finish_collectives(), then again
  };
  // On demand: takes host memory, and is the first two below in one.
  Outcome page_out(Block& block);

  // The first begins a copy to the host, and the block stays usable. The second gives its memory
  // up, behind the copy and all that its home stream has queued. The third keeps the memory
  // instead; wrote() orders a later write behind the copy. False: CUDA refused, and the block is as
  // it was.
  bool start_page_out(Block& block);
  bool finish_page_out(Block& block, c10::StorageImpl& storage);
  void cancel_page_out(Block& block);

  // Waits for the oldest copy that keeps a host buffer. Pauses the mutex.
  void wait_for_host();

  // ---- to the device ----

  // Tells the native allocator which other streams use the block that new memory is for. The block
  // is PagingIn. Pauses the mutex.
  void share(const Block& block, const at::DataPtr& memory);

  // Begins a copy into the memory. The block is PagingIn before, and until order() is called after
  // it. Throws c10::Error; the block is paged out then, and the memory is the caller's.
  void page_in(Block& block, c10::StorageImpl& storage, at::DataPtr&& memory);

  // The native allocator has given memory out, for a block or not; of page_in()'s it is told there.
  void taken(const void* memory, size_t bytes) {
    freed_.taken(memory, rounded(bytes));
  }
  // It may have, and nobody was told.
  void forget_freed() {
    freed_.forget();
  }

  // ---- the end ----

  // Gives up what a dead block has, in order with its users; never throws.
  void discard(Block& block, bool captured) noexcept;

  // Gives up what is no longer needed and was in use by the device when that was so (limbo,
  // hashes). Not while a graph is captured.
  void collect();

  // Drops host copies of blocks that are on the device, so many bytes; false when there are none.
  bool drop_clean_copies(size_t bytes);

  // Bytes of memory in limbo: no block has it, and the native allocator does not have it yet,
  // because the device may still use it. The second waits until it does not, and pauses the mutex.
  size_t limbo_bytes() const {
    return limbo_bytes_;
  }
  void wait_for_limbo();

  // Waits for all of the device's work. Pauses the mutex.
  void synchronize();

  // Whether writes that no operator shows are found, and if not, why.
  bool checks() {
    return checker_.available();
  }
  const std::string& why_no_checks() const {
    return checker_.why();
  }
  // Warns, once, when such a write was found.
  void report_caught();
  int64_t caught() {
    return static_cast<int64_t>(checker_.caught() - forgotten_);
  }

  // Bytes of host memory: pins until there are so many, or unpins what is not in use; returns what
  // there is, or what was released. Trimming waits for copies, and pauses the mutex.
  size_t reserve_host(size_t bytes);
  size_t trim_host();
  // Page-outs are near: makes what they need while there is memory for it.
  void prepare() {
    arena_.prepare();
    checks();
  }
  const Arena& arena() const {
    return arena_;
  }
  void reset_peak_stats() {
    arena_.reset_peak();
  }
  void reset_accumulated_stats() {
    arena_.reset_accumulated();
    forgotten_ = checker_.caught();
  }

  // Something was paged out once.
  bool under_pressure() const {
    return pressure_;
  }
  // Why the last page-out failed, or nothing.
  const std::string& trouble() const {
    return trouble_;
  }
  void trouble(std::string text) {
    trouble_ = std::move(text);
  }

 private:
  // Memory that no block has any more, and what its next user must wait for: on its home stream, if
  // that is known, else on the host.
  struct Limbo {
    at::DataPtr memory;
    size_t bytes;
    std::optional<c10::cuda::CUDAStream> home;
    EventRef after;
  };
  // Work of a stream on memory that has gone back to the native allocator. The program knows when
  // it may allocate that memory again on its home stream, but not when LMS does, for a page-in.
  struct Stray {
    std::optional<c10::cuda::CUDAStream> home;
    Timeline* timeline;
    uint64_t position;
  };
  // A hash that no block needs, until kernels no longer use it.
  struct Retired {
    Checker::Slot hash;
    EventRef touched;
  };

  bool take_host(Block& block);
  void drop_host(Block& block);
  void behind_uses(Block& block, cudaStream_t stream, bool everything);
  void leave_memory(const Block& block, EventRef last_use);
  void leave_strays(const Block& block, bool captured);
  EventRef end_of(const Stray& stray);
  void behind_strays(cudaStream_t home);
  void give_up(Block& block);
  void keep_until(const EventRef& done, Block& block, std::optional<c10::cuda::CUDAStream> home);
  bool matches(const Block& block) const;
  cudaStream_t home_of(const Block& block) const {
    return block.home ? block.home->stream() : transfer_.out();
  }

  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  Registry& registry_;
  Stats& stats_;

  Transfer transfer_;
  Arena arena_;
  Checker checker_;
  FreedMemory freed_;
  std::map<cudaStream_t, std::unique_ptr<Timeline>> timelines_;
  std::vector<Stray> strays_; // one for each home and stream: the last
  std::deque<Limbo> limbo_;
  size_t limbo_bytes_ = 0;
  std::deque<Retired> retired_;
  std::map<Checker::Slot, const char*> users_; // who used the block of a hash last
  uint64_t collectives_ = 0; // calls of collectives until now
  uint64_t finished_ = 0; // of these, how many have surely ended
  uint64_t reported_ = 0; // unseen writes that a warning was given for
  uint64_t forgotten_ = 0; // unseen writes before the statistics were reset
  bool pressure_ = false;
  std::string trouble_;
};

} // namespace torch::cuda::lms

#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/host/arena.h>
#include <torch/csrc/cuda/lms/kernel/checker.h>
#include <torch/csrc/cuda/lms/move/freed.h>
#include <torch/csrc/cuda/lms/move/packing.h>
#include <torch/csrc/cuda/lms/move/slots.h>
#include <torch/csrc/cuda/lms/move/transfer.h>
#include <torch/csrc/cuda/lms/record/recorders.h>
#include <torch/csrc/cuda/lms/stream/timeline.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

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

  Timeline& timeline(c10::cuda::CUDAStream stream);

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
  void order(Block& block, cudaStream_t stream, bool captured);

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
    Busy, // host memory or kernels are not there yet: call provide(), then try again
    Unfinished, // a collective may still use it: call finish_collectives(), then try again
  };
  // Pages out on demand: takes host memory, and then calls start_page_out() and finish_page_out().
  Outcome page_out(Block& block);

  // Copies an idle block to the host, and keeps its memory, so that a later page-out needs no copy.
  // Moved means that the host has the bytes. Never waits for the device.
  Outcome copy_ahead(Block& block);

  // start_page_out() starts a copy to the host; the block can still be used. finish_page_out()
  // gives up the device memory, ordered after the copy and after everything that is queued on the
  // home stream. cancel_page_out() keeps the device memory instead; wrote() makes a later write
  // wait for the copy. The first two return false if CUDA refused; the block is unchanged then.
  bool start_page_out(Block& block);
  bool finish_page_out(Block& block, c10::StorageImpl& storage);
  void cancel_page_out(Block& block);

  // Makes the kernels that page-outs lack, or pins more host memory, or waits for work after which
  // more of it is free. Pauses the mutex. Throws c10::Error if the host has no memory left.
  void provide();

  // ---- page-in ----

  // Tells the native allocator which other streams use the block, for the block's new memory. The
  // block is PagingIn. Pauses the mutex.
  void share(const Block& block, const at::DataPtr& memory);

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
  // Call this when it may have handed out memory without a call of taken().
  void forget_freed() {
    freed_.forget();
  }

  // How fast page-outs and page-ins are, in bytes per second: of blocks that are compressed or not,
  // if some were, else of all; 0 if not known yet.
  double out_rate(bool compressed) {
    return transfer_.out_rate(engine(compressed));
  }
  double in_rate(bool compressed) {
    return transfer_.in_rate(engine(compressed));
  }

  // ---- release ----

  // Releases the memory of a block whose storage was freed, in order with the streams that use it.
  // Never throws.
  void discard(Block& block, bool captured) noexcept;

  // Releases memory in limbo and hashes that could not be released before because the device used
  // them. Must not be called while a graph is captured.
  void collect();

  // Drops host copies of resident blocks until this number of bytes is dropped. Returns false if
  // there were none.
  bool drop_clean_copies(size_t bytes);

  // Bytes of memory in limbo: no block has it, and the native allocator does not have it yet,
  // because the device may still use it. wait_for_limbo() waits until the device has finished, and
  // pauses the mutex.
  size_t limbo_bytes() const {
    return limbo_bytes_;
  }
  void wait_for_limbo();

  // Waits for all work of the device, or of another one. Pauses the mutex.
  void synchronize() {
    synchronize(device_);
  }
  static void synchronize(c10::DeviceIndex device);

  // Whether LMS can find unseen writes; why_no_checks() returns the reason if it cannot. Call
  // prepare_kernels() before.
  bool checks() {
    return checker_.available();
  }
  const std::string& why_no_checks() const {
    return checker_.why();
  }
  // Warns, once, if an unseen write was found. Throws c10::Error if compressed bytes came back as
  // other ones.
  void report_caught();
  int64_t caught() {
    return static_cast<int64_t>(checker_.caught() - forgotten_);
  }

  Packing& packing() {
    return packing_;
  }

  // reserve_host() pins host memory until there is at least this number of bytes, and returns how
  // many bytes are pinned. trim_host() unpins what is not in use, and returns how many bytes it
  // unpinned. It waits for copies, and pauses the mutex.
  size_t reserve_host(size_t bytes);
  size_t trim_host();
  // Called when page-outs are likely soon: prepares what they need while there is still memory for
  // it. Returns whether it has paused the mutex.
  bool prepare() {
    arena_.prepare();
    return prepare_kernels();
  }
  bool prepare_kernels();
  const Arena& arena() const {
    return arena_;
  }
  const Slots& slots() const {
    return slots_;
  }
  void reset_peak_stats() {
    arena_.reset_peak();
    slots_.reset_peak();
  }
  void reset_accumulated_stats() {
    arena_.reset_accumulated();
    slots_.reset_accumulated();
    forgotten_ = checker_.caught();
    packing_.reset_totals();
  }

  // Whether anything has been paged out so far.
  bool under_pressure() const {
    return pressure_;
  }
  // Why the last page-out failed; empty if none has.
  const std::string& trouble() const {
    return trouble_;
  }
  void trouble(std::string text) {
    trouble_ = std::move(text);
  }

 private:
  // Memory that no block has any more, and the event for which its next user must wait: on the home
  // stream if it is known, otherwise on the host.
  struct Limbo {
    at::DataPtr memory;
    size_t bytes;
    std::optional<c10::cuda::CUDAStream> home;
    EventRef after;
  };
  // Work of another stream on memory that has gone back to the native allocator. The program orders
  // its own allocations on the home stream after this work, but it does not know when LMS allocates
  // the memory for a page-in.
  struct Stray {
    std::optional<c10::cuda::CUDAStream> home;
    Timeline* timeline;
    uint64_t position;
  };
  // A hash that no block needs any more, but that kernels may still use.
  struct Retired {
    Checker::Slot hash;
    EventRef touched;
  };

  template <class F>
  Outcome with_storage(Block& block, bool release, F move);
  void wait_for(const EventRef& transfer, cudaStream_t stream);
  bool prepared() const;
  void wait_for_host();
  void make_kernels();
  bool take_host(Block& block, bool release);
  bool extend_host(Block& block);
  void settle_host();
  void drop_host(Block& block);
  void show(compat::Range& range, const char* transfer, const Block& block) const;
  void copy_out(Block& block);
  void copy_in(Block& block, void* memory);
  size_t copy_bytes(const Block& block) const;
  static Transfer::Engine engine(bool compressed) {
    return compressed ? Transfer::Engine::Kernels : Transfer::Engine::Copies;
  }
  static Transfer::Engine engine_of(const Block& block);
  void behind_uses(Block& block, cudaStream_t stream, bool everything);
  void leave_memory(const Block& block, EventRef last_use);
  void leave_strays(const Block& block, bool captured);
  EventRef end_of(const Stray& stray);
  static bool of_home(const Stray& stray, cudaStream_t home);
  void behind_strays(cudaStream_t home);
  void give_up(Block& block);
  void keep_until(const EventRef& done, Block& block, std::optional<c10::cuda::CUDAStream> home);
  bool matches(const Block& block);

  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  Registry& registry_;
  Stats& stats_;
  Recorders& recorders_;

  Transfer transfer_;
  Arena arena_;
  Checker checker_;
  Packing packing_;
  Slots slots_;
  FreedMemory freed_;
  std::map<cudaStream_t, std::unique_ptr<Timeline>> timelines_;
  std::vector<Stray> strays_; // for each home and stream, the last one
  std::deque<Limbo> limbo_;
  size_t limbo_bytes_ = 0;
  std::deque<Retired> retired_;
  std::map<Checker::Slot, const char*> users_; // which operator used the block of a hash last
  uint64_t collectives_ = 0; // number of collectives called so far
  uint64_t finished_ = 0; // the collectives up to this number have ended
  uint64_t reported_ = 0; // unseen writes at the time of the last warning
  uint64_t forgotten_ = 0; // unseen writes when the statistics were last reset
  bool making_ = false; // whether a thread is in make_kernels()
  bool pressure_ = false;
  std::string trouble_;
};

} // namespace torch::cuda::lms

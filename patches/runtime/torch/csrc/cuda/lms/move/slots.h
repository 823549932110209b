#pragma once

#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/host/arena.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <cstddef>
#include <iterator>
#include <list>
#include <unordered_map>

namespace torch::cuda::lms {

// The host buffers of one device's compressed blocks, which are as small as what is in them.
//
// How far a block shrinks is known only when the kernel has ended, and its device memory is given
// up before the host knows. So while work in flight may pack a block, its buffer is large enough
// for bytes that do not shrink. Behind what is expected to stay, that is the spare. When the work
// has ended, the buffer is cut off behind what was packed. Used under the LMS mutex, with the
// device current.
class Slots {
 public:
  explicit Slots(Arena& arena) : arena_(arena) {}
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // What a buffer needs into which a block is packed: how many bytes at most, and how many of them
  // will probably stay.
  static Demand demand(size_t most, size_t expected);

  // The block is going to be packed into its buffer, which has this number of spare bytes.
  void taken(Block& block, size_t spare);

  // Whether the block's buffer was cut off, so that nothing may be packed into it. extend() makes
  // it large enough again. Returns false if it is better to wait. Throws c10::Error.
  static bool shrunk(const Block& block);
  bool extend(Block& block);

  // All work that may pack the block has been issued, and has ended when the event is complete.
  // Does nothing if the block is not packed.
  void written(Block& block, EventRef done);

  // Cuts off the buffers of blocks for which this event is complete. Before, it calls ended(block).
  template <typename Ended>
  void settle(Ended ended) {
    size_t misses = 0;
    for (auto entry = writing_.begin(); entry != writing_.end() && misses < kMisses;) {
      if (!entry->done->done()) {
        ++entry;
        ++misses;
        continue;
      }
      entry = end(entry, ended);
    }
  }
  // The same for blocks with this event, for which the caller has waited.
  template <typename Ended>
  void finished(const EventRef& done, Ended ended) {
    for (auto entry = writing_.begin(); entry != writing_.end();) {
      entry = entry->done == done ? end(entry, ended) : std::next(entry);
    }
  }

  // The block's buffer is about to be given back.
  void dropped(Block& block);

  // How many bytes settle() will probably give back when work in flight has ended.
  size_t coming() const {
    return coming_;
  }
  // The event of the block for which written() was called first; null if there is none.
  EventRef oldest() const {
    return writing_.empty() ? nullptr : writing_.front().done;
  }

  // For how many blocks written() was called, and their work may not have ended.
  size_t pending() const {
    return writing_.size();
  }

  void reset_peak();
  void reset_accumulated();

  const Stat& used() const {
    return used_; // bytes of buffers
  }
  const Stat& tensors() const {
    return tensors_; // bytes of the blocks in them
  }

 private:
  struct Entry {
    Block* block;
    EventRef done;
    size_t spare;
  };
  using Writing = std::list<Entry>;

  // These return the next entry.
  template <typename Ended>
  Writing::iterator end(Writing::iterator entry, Ended ended) {
    Block& block = *entry->block;
    const auto next = forget(entry);
    ended(block);
    shrink(block);
    return next;
  }
  Writing::iterator forget(Writing::iterator entry);
  void shrink(Block& block);

  // The events of different streams are not complete in the order of the list.
  static constexpr size_t kMisses = 8;

  Arena& arena_;
  Writing writing_;
  std::unordered_map<const Block*, Writing::iterator> places_; // in writing_
  size_t coming_ = 0;
  Stat used_;
  Stat tensors_;
};

} // namespace torch::cuda::lms

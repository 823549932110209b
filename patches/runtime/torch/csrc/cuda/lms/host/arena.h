#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/host/pinner.h>
#include <torch/csrc/cuda/lms/host/slab.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace torch::cuda::lms {

// How much host memory is needed.
struct Demand {
  size_t bytes;
  // How many of these bytes, at the end, shrink() will probably give back soon.
  size_t spare = 0;
  // How many bytes of other buffers shrink() will give back when work that was issued has ended.
  size_t coming = 0;
};

// Pinned host memory for one device, in slabs on the NUMA node next to it. Buffers are allocated
// best fit in multiples of kAlign bytes, and adjacent free ranges are merged. A buffer for which no
// range is large enough is put together from parts, so that fragmentation does not waste memory.
// Once the arena is in use, the next slab is pinned before it is needed. Slabs are kept until
// trim(). Used under the LMS mutex, with the device current. take() and extend() never wait.
class Arena {
 public:
  Arena(c10::DeviceIndex device, const Settings& settings);

  // Takes a buffer of at least this many bytes. Returns false if there is no memory yet. It is
  // being pinned then, or grow() has to be called, or work in flight still uses it, and it is
  // better to wait for that than to pin more.
  bool take(const Demand& demand, HostBuffer& buffer);

  // Adds the bytes to the end of a buffer. They are all spare. Otherwise as take().
  bool extend(const Demand& demand, HostBuffer& buffer);

  // Gives back what is behind the first `bytes` bytes of a buffer. No work in flight may use it.
  void shrink(HostBuffer& buffer, size_t bytes);

  // Returns a buffer, which may be used again when the event is complete (null: at once). Before
  // that, calls freed(buffer), if there is such a function. Does not query the event, because this
  // would invalidate the capture of a graph.
  using Freed = std::function<void(const HostBuffer& buffer)>;
  void give(HostBuffer buffer, EventRef copied, Freed freed = nullptr);

  // The event after which the buffer that was returned first is free; null if no buffer is in use
  // by copies.
  EventRef oldest() const {
    return pending_.empty() ? nullptr : pending_.front().copied;
  }

  // How many buffers are in use by copies.
  size_t pending() const {
    return pending_.size();
  }

  // collect() frees buffers whose copies have ended. finished() frees those of an event for which
  // the caller has waited.
  void collect() {
    collect(pending_.size());
  }
  void finished(const EventRef& copied);

  // Starts to pin the first slab, or what take() has lacked, because it will be needed soon.
  void prepare();

  // Whether memory is being pinned, for which wait_for_pinner() waits. Whether take() has lacked
  // memory, which grow() pins. Both pause the mutex. grow() throws c10::Error if the host limit of
  // the process is reached or the machine has no memory left.
  bool pinning() const {
    return pinner_.bytes() > 0 && !pinner_.ready();
  }
  void wait_for_pinner();
  size_t wanted() const {
    return wanted_; // bytes
  }
  void grow();

  // Pins until there is at least this number of bytes; returns how many there are. Pauses the
  // mutex.
  size_t reserve(size_t bytes);

  // Unpins slabs that contain no buffer, not even one that copies in flight still use. Returns the
  // number of bytes that were unpinned. Pauses the mutex. Throws c10::Error if the driver refuses.
  size_t trim();

  void reset_peak();
  void reset_accumulated();

  const Stat& pinned() const {
    return pinned_; // bytes of slabs
  }
  const Stat& used() const {
    return used_; // bytes of buffers that are taken
  }
  const Stat& busy() const {
    return busy_; // bytes of buffers that are taken, or still used by copies
  }
  size_t bytes_on_node(size_t node) const {
    return by_node_[node];
  }

 private:
  struct Pending {
    HostBuffer buffer;
    EventRef copied;
    Freed freed;
  };

  using Range = std::map<char*, size_t>::iterator; // in free_

  bool provide(size_t bytes, const Demand& demand);
  size_t lacking(size_t bytes) const;
  void fit(size_t bytes, HostBuffer& buffer);
  void fit_at_end(size_t bytes, HostBuffer& buffer);
  void free(const Pending& pending);
  void insert(char* data, size_t size);
  Range forget(Range range); // returns the next one
  void add(std::unique_ptr<Slab> slab);
  void subtract(const Slab& slab);
  std::unique_ptr<Slab> take_idle();
  void collect(size_t most);
  void pin(size_t bytes);
  void pin_ahead(size_t bytes, size_t coming);
  void take_over();
  size_t slab_bytes() const;
  size_t current() const {
    return static_cast<size_t>(pinned_.current);
  }

  static constexpr size_t kAlign = 4096; // bytes
  // Each part is a separate copy. Copying 256 KiB takes 5 us on the link, as long as issuing the
  // copy.
  static constexpr size_t kSmallestPart = size_t(256) << 10; // bytes
  static constexpr size_t kMisses = 8; // collect() stops after this number of buffers still in use
  // take() frees so many, as long as one range is large enough then. Each asks about an event,
  // which takes the host microseconds. When an iteration begins, all copies of the one before have
  // ended, and the device has nothing to do meanwhile.
  static constexpr size_t kFew = 2;
  // It is not waited for less spare memory than this. Work that returns so much takes milliseconds,
  // so the device has something to do while the host waits for the first of it.
  static constexpr size_t kWorthWaiting = size_t(64) << 20; // bytes
  static constexpr size_t kSmallestSlab = size_t(8) << 20; // bytes
  static constexpr size_t kLargestSlab = size_t(512) << 20; // bytes

  const Settings& settings_;
  const int node_; // NUMA node of the device; -1 if unknown
  std::map<char*, std::unique_ptr<Slab>> slabs_; // by start address
  std::map<char*, size_t> free_; // start -> bytes; no range spans two slabs
  std::multimap<size_t, char*> by_size_;
  std::deque<Pending> pending_;
  Pinner pinner_;
  size_t wanted_ = 0; // bytes that the last take() lacked, unless it is better to wait for copies
  size_t free_bytes_ = 0; // the sum of free_
  Stat pinned_;
  Stat used_;
  Stat busy_;
  std::vector<size_t> by_node_; // bytes of slabs on each NUMA node
};

} // namespace torch::cuda::lms

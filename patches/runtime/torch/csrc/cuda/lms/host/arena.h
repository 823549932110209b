#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/host/pinner.h>
#include <torch/csrc/cuda/lms/host/slab.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace torch::cuda::lms {

// Pinned host memory of one device: slabs next to it, suballocated best fit in
// steps of kAlign bytes, neighbours merged when freed. A buffer that fits
// nowhere is put together from parts, so that what is free is not lost to
// fragmentation. Once the arena is in use the next slab is pinned before it is
// needed. Slabs are kept until trim().
// Used under the LMS mutex, with the device current.
class Arena {
 public:
  Arena(c10::DeviceIndex device, const Settings& settings);

  // A buffer of at least this many bytes. False when there is none because copies are in flight:
  // that is better waited for, with oldest(), than more memory pinned. Throws c10::Error when the
  // limit of the process or the machine's memory is reached.
  bool take(size_t bytes, HostBuffer& buffer);

  // The buffer may be used again when the event is complete (null: at once). Asks CUDA nothing:
  // while a graph is captured, that would end the capture.
  void give(HostBuffer buffer, EventRef copied);

  // The end of the copies of the buffer that was given back first, or null.
  EventRef oldest() const {
    return pending_.empty() ? nullptr : pending_.front().copied;
  }

  // Takes back what copies no longer use; and what a caller has waited for.
  void collect();
  void finished(const EventRef& copied);

  // The arena will be needed soon: begins the first slab.
  void prepare();

  // Pins until there are so many bytes; returns how many there are.
  size_t reserve(size_t bytes);

  // Unpins slabs that hold no buffer, not even one whose copies are in flight; returns the bytes
  // released.
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
    return busy_; // the same, and of those given back whose copies are in flight
  }
  size_t bytes_on_node(size_t node) const {
    return by_node_[node];
  }

 private:
  struct Pending {
    HostBuffer buffer;
    EventRef copied;
  };

  using Range = std::map<char*, size_t>::iterator; // of free_

  size_t lacking(size_t bytes) const;
  HostBuffer fit(size_t bytes);
  void free(const HostBuffer& buffer);
  void insert(char* data, size_t size);
  Range forget(Range range); // returns the next one
  void add(std::unique_ptr<Slab> slab);
  void grow(size_t bytes);
  void pin(size_t bytes);
  void pin_ahead(size_t bytes);
  bool ready();
  size_t slab_bytes() const;
  size_t current() const {
    return static_cast<size_t>(pinned_.current);
  }

  static constexpr size_t kAlign = 4096; // bytes
  // Each part is a copy of its own: 256 KiB take 5 us on the link, as long as it
  // takes to issue one.
  static constexpr size_t kSmallestPart = size_t(256) << 10; // bytes
  static constexpr size_t kMisses = 8; // buffers in use, of those that collect() asks for
  static constexpr size_t kSmallestSlab = size_t(8) << 20; // bytes
  static constexpr size_t kLargestSlab = size_t(512) << 20; // bytes

  const Settings& settings_;
  const int node_; // of the device; -1 unknown
  std::map<char*, std::unique_ptr<Slab>> slabs_; // by start
  std::map<char*, size_t> free_; // start -> bytes, never across slabs
  std::multimap<size_t, char*> by_size_;
  std::deque<Pending> pending_;
  Pinner pinner_;
  size_t free_bytes_ = 0; // the sum of free_
  Stat pinned_;
  Stat used_;
  Stat busy_;
  std::vector<size_t> by_node_; // bytes of slabs
};

} // namespace torch::cuda::lms

#include <torch/csrc/cuda/lms/move/freed.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

void FreedMemory::freed(const void* memory, size_t bytes, EventRef last_use) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  erase(begin, bytes);
  if (ranges_.size() >= kRanges) {
    ranges_.clear();
  }
  ranges_[begin] = {begin + bytes, std::move(last_use)};
}

// The first range that ends after the address.
FreedMemory::Ranges::const_iterator FreedMemory::first_behind(uintptr_t address) const {
  auto range = ranges_.upper_bound(address);
  if (range != ranges_.begin() && std::prev(range)->second.end > address) {
    --range;
  }
  return range;
}

void FreedMemory::erase(uintptr_t begin, size_t bytes) {
  const uintptr_t end = begin + bytes;
  for (auto range = first_behind(begin); range != ranges_.end() && range->first < end;) {
    const uintptr_t old_begin = range->first;
    const Range old = range->second;
    range = ranges_.erase(range);
    if (old_begin < begin) {
      ranges_[old_begin] = {begin, old.last_use};
    }
    if (old.end > end) {
      ranges_[end] = old;
      break;
    }
  }
}

bool FreedMemory::block(const void* memory, size_t bytes, cudaStream_t stream) const {
  if (!knows(bytes)) {
    return false;
  }
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t end = begin + bytes;
  std::vector<EventRef> events;
  uintptr_t known = begin; // everything before this address is known
  for (auto range = first_behind(begin); known < end; ++range) {
    if (range == ranges_.end() || range->first > known) {
      return false;
    }
    const EventRef& event = range->second.last_use;
    if (std::find(events.begin(), events.end(), event) == events.end()) {
      events.push_back(event);
    }
    known = range->second.end;
  }
  for (const EventRef& event : events) {
    event->block(stream);
  }
  return true;
}

} // namespace torch::cuda::lms

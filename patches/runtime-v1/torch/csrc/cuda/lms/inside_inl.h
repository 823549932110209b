// Included at the end of CUDACachingAllocator.cpp in PyTorch before 1.4, which is C++11.

#ifndef C10_CUDA_NO_LMS

#include <torch/csrc/cuda/lms/compat/inside.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace torch {
namespace cuda {
namespace lms {
namespace inside {

namespace native = c10::cuda::CUDACachingAllocator;

DeviceStats getDeviceStats(int device) {
  const std::lock_guard<std::recursive_mutex> lock(native::caching_allocator.mutex);
  const native::DeviceStats& known = native::caching_allocator.get_stats_for_device(device);
  DeviceStats stats;
  stats.segment[0].allocated = static_cast<int64_t>(known.device_allocs);
  stats.allocated_bytes[0].current = static_cast<int64_t>(known.amount_allocated);
  stats.reserved_bytes[0].current = static_cast<int64_t>(known.amount_cached);
  return stats;
}

Active active(int device, size_t idle) {
  const std::lock_guard<std::recursive_mutex> lock(native::caching_allocator.mutex);
  native::DeviceStats& known = native::caching_allocator.get_stats_for_device(device);
  Active active;
  // What was idle may have been paged out meanwhile.
  active.current = static_cast<int64_t>(
      known.amount_allocated - std::min<uint64_t>(idle, known.amount_allocated));
  active.peak = std::max(static_cast<int64_t>(known.max_amount_active), active.current);
  known.max_amount_active = static_cast<uint64_t>(active.peak);
  return active;
}

void reset_active(int device) {
  const std::lock_guard<std::recursive_mutex> lock(native::caching_allocator.mutex);
  native::caching_allocator.get_stats_for_device(device).max_amount_active = 0;
}

std::vector<SegmentInfo> snapshot() {
  const std::lock_guard<std::recursive_mutex> lock(native::caching_allocator.mutex);
  // The first block of each segment, by address. A segment is left out if all of its blocks wait
  // for a stream, because it has no memory to offer.
  std::map<void*, const native::Block*> firsts;
  const auto add = [&](const native::Block* block) {
    while (block->prev) {
      block = block->prev;
    }
    firsts.emplace(block->ptr, block);
  };
  for (const native::Block* block : native::caching_allocator.small_blocks) {
    add(block);
  }
  for (const native::Block* block : native::caching_allocator.large_blocks) {
    add(block);
  }
  for (const auto& entry : native::caching_allocator.allocated_blocks) {
    add(entry.second);
  }
  std::vector<SegmentInfo> segments;
  for (const auto& entry : firsts) {
    const native::Block* block = entry.second;
    SegmentInfo segment;
    segment.device = block->device;
    segment.address = reinterpret_cast<int64_t>(block->ptr);
    segment.stream = block->stream;
    for (; block; block = block->next) {
      BlockInfo info;
      info.size = static_cast<int64_t>(block->size);
      info.allocated = block->allocated;
      info.active = block->allocated || block->event_count > 0;
      segment.total_size += info.size;
      segment.blocks.push_back(info);
    }
    // Those for small requests have 1 or 2 MiB.
    segment.is_large = segment.total_size > (int64_t(2) << 20);
    segments.push_back(std::move(segment));
  }
  return segments;
}

} // namespace inside
} // namespace lms
} // namespace cuda
} // namespace torch

#endif

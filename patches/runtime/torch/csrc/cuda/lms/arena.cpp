#include <torch/csrc/cuda/lms/arena.h>

#include <algorithm>

namespace torch::cuda::lms {

namespace {

size_t round_up(size_t bytes, size_t step) {
  return (bytes + step - 1) / step * step;
}

} // namespace

HostBuffer Arena::take(size_t bytes) {
  const size_t size = round_up(std::max<size_t>(bytes, 1), kAlign);
  HostBuffer buffer;
  collect();
  while (!fit(size, buffer)) {
    if (!pending_.empty()) {
      pending_.front().copied->synchronize();
      collect();
    } else {
      grow(size);
    }
  }
  used_ += size;
  return buffer;
}

void Arena::give(HostBuffer buffer, EventRef copied) {
  used_ -= buffer.size;
  if (copied && !copied->done()) {
    pending_.push_back({buffer, std::move(copied)});
  } else {
    insert(buffer.data, buffer.size);
  }
}

size_t Arena::trim() {
  for (const Pending& pending : pending_) {
    pending.copied->synchronize();
  }
  collect();
  size_t released = 0;
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    const auto range = free_.find(slab->first);
    if (range == free_.end() || range->second != slab->second) {
      ++slab;
      continue;
    }
    C10_CUDA_CHECK(cudaFreeHost(slab->first));
    auto sized = by_size_.equal_range(range->second);
    by_size_.erase(std::find_if(sized.first, sized.second, [&](const auto& e) {
      return e.second == range->first;
    }));
    free_.erase(range);
    released += slab->second;
    pinned_ -= slab->second;
    slab = slabs_.erase(slab);
  }
  return released;
}

bool Arena::fit(size_t bytes, HostBuffer& buffer) {
  const auto found = by_size_.lower_bound(bytes);
  if (found == by_size_.end()) {
    return false;
  }
  const size_t size = found->first;
  char* const data = found->second;
  by_size_.erase(found);
  free_.erase(data);
  if (size > bytes) {
    free_.emplace(data + bytes, size - bytes);
    by_size_.emplace(size - bytes, data + bytes);
  }
  buffer = {data, bytes};
  return true;
}

void Arena::insert(char* data, size_t size) {
  const auto forget = [this](std::map<char*, size_t>::iterator range) {
    auto sized = by_size_.equal_range(range->second);
    by_size_.erase(std::find_if(sized.first, sized.second, [&](const auto& e) {
      return e.second == range->first;
    }));
    return free_.erase(range);
  };
  // Two slabs may touch by chance; a buffer must not span them, because each
  // is unpinned by itself.
  auto next = free_.lower_bound(data);
  if (next != free_.end() && data + size == next->first && !slabs_.count(next->first)) {
    size += next->second;
    next = forget(next);
  }
  if (next != free_.begin() && !slabs_.count(data)) {
    const auto before = std::prev(next);
    if (before->first + before->second == data) {
      data = before->first;
      size += before->second;
      forget(before);
    }
  }
  free_.emplace(data, size);
  by_size_.emplace(size, data);
}

void Arena::grow(size_t bytes) {
  // Slabs grow with the arena: a small job pins little, a large one seldom.
  size_t slab = std::min(std::max(kSmallestSlab, pinned_ / 2), kLargestSlab);
  slab = std::max(bytes, round_up(slab, kAlign));
  void* data = nullptr;
  cudaError_t error = cudaHostAlloc(&data, slab, cudaHostAllocPortable);
  if (error != cudaSuccess && slab > bytes) {
    (void)cudaGetLastError();
    slab = bytes;
    error = cudaHostAlloc(&data, slab, cudaHostAllocPortable);
  }
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    TORCH_CHECK(
        false,
        "LMS: ",
        bytes,
        " bytes of host memory cannot be pinned (",
        cudaGetErrorString(error),
        "); ",
        pinned_,
        " bytes are pinned");
  }
  slabs_.emplace(static_cast<char*>(data), slab);
  pinned_ += slab;
  insert(static_cast<char*>(data), slab);
}

void Arena::collect() {
  // In order of issue, so the front is done first (one page-in stream).
  while (!pending_.empty() && pending_.front().copied->done()) {
    insert(pending_.front().buffer.data, pending_.front().buffer.size);
    pending_.pop_front();
  }
}

} // namespace torch::cuda::lms

#include <torch/csrc/cuda/lms/room/pools.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace torch::cuda::lms {

bool Pools::begin(compat::MempoolId pool, Filter filter, c10::cuda::CUDAStream current) {
  // A program may use a pool and capture something meanwhile. The pool goes on when the capture
  // ends.
  const bool capture = compat::is_capturing(current.stream()) || !filter(current.stream());
  const std::lock_guard<std::mutex> lock(mutex_);
  active_.push_back({pool, std::move(filter), current, std::this_thread::get_id(), capture, false});
  any_ = true;
  return capture;
}

void Pools::end(compat::MempoolId pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(
      active_.begin(), active_.end(), [&](const Active& active) { return active.pool == pool; });
  if (found != active_.end()) {
    active_.erase(found);
  }
  any_ = !active_.empty();
}

void Pools::released(compat::MempoolId pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  active_.remove_if([&](const Active& active) { return active.pool == pool; });
  any_ = !active_.empty();
}

// Whether any stream captures. A capture that is over although end() was not called has failed: its
// pool is removed, because its filter may belong to a graph that no longer exists. If it was not
// seen, its own thread knows: between begin() and the beginning of the capture, that does nothing.
bool Pools::look() {
  const c10::cuda::CUDAGuard guard(device_);
  bool capturing = false;
  for (auto active = active_.begin(); active != active_.end();) {
    const bool now = compat::is_capturing(active->stream.stream());
    capturing = capturing || now;
    const bool begun = active->captured || active->thread == std::this_thread::get_id();
    if (active->capture && begun && !now) {
      active = active_.erase(active);
      continue;
    }
    active->captured = active->capture && now;
    ++active;
  }
  any_ = !active_.empty();
  return capturing;
}

bool Pools::takes(cudaStream_t stream) {
  if (!any_) {
    return false;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  look();
  return std::any_of(
      active_.begin(), active_.end(), [&](const Active& active) { return active.filter(stream); });
}

Pools::Outside::Outside(Pools& pools, const Native& native, cudaStream_t stream)
    : device_(pools.device_), native_(native) {
  if (!pools.any_) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(pools.mutex_);
    for (const Active& active : pools.active_) {
      if (!active.capture && active.filter(stream)) {
        left_.emplace_back(active.pool, active.filter);
      }
    }
  }
  for (const auto& [pool, filter] : left_) {
    native_.leave_pool(device_, pool);
  }
}

Pools::Outside::~Outside() {
  for (const auto& [pool, filter] : left_) {
    try {
      native_.enter_pool(device_, pool, filter);
    } catch (const c10::Error&) {
      // Another thread has begun to use the pool meanwhile.
    }
  }
}

bool Pools::capturing() {
  if (!any_) {
    return false; // a capture always allocates from a pool
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return look();
}

void Pools::given(void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  given_.insert(address);
  gave_ = true;
}

void Pools::taken_back(void* address) {
  if (gave_) {
    const std::lock_guard<std::mutex> lock(mutex_);
    given_.erase(address);
    const auto segment = segment_of(address);
    if (segment != segments_.end()) {
      segments_.erase(segment);
    }
  }
}

bool Pools::owns(void* address) const {
  if (!gave_) {
    return false;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return given_.count(address) || segment_of(address) != segments_.end();
}

Pools::Segments::const_iterator Pools::segment_of(const void* address) const {
  const auto place = reinterpret_cast<size_t>(address);
  const auto after = segments_.upper_bound(place);
  const bool inside = after != segments_.begin() && place < std::prev(after)->second;
  return inside ? std::prev(after) : segments_.end();
}

void Pools::learn(const compat::cca::SnapshotInfo& snapshot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Pools that gave memory before may be gone, and others have it now.
  given_.clear();
  segments_.clear();
  for (const auto& segment : snapshot.segments) {
    if (segment.device == device_ && segment.owner_private_pool_id != compat::MempoolId{0, 0}) {
      segments_.emplace(segment.address, segment.address + segment.total_size);
      gave_ = true;
    }
  }
}

} // namespace torch::cuda::lms

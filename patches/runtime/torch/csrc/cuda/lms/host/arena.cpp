#include <torch/csrc/cuda/lms/host/arena.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/host/budget.h>
#include <torch/csrc/cuda/lms/host/host.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <system_error>
#include <utility>

namespace torch::cuda::lms {

namespace {

size_t round_up(size_t bytes, size_t step) {
  return (bytes + step - 1) / step * step;
}

int node_of(c10::DeviceIndex device) {
  std::array<int, 3> address{};
  const std::array<cudaDeviceAttr, 3> attributes = {
      cudaDevAttrPciDomainId, cudaDevAttrPciBusId, cudaDevAttrPciDeviceId};
  for (size_t i = 0; i < address.size(); ++i) {
    if (cudaDeviceGetAttribute(&address[i], attributes[i], device) != cudaSuccess) {
      (void)cudaGetLastError();
      return -1;
    }
  }
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "%04x:%02x:%02x.0", address[0], address[1], address[2]);
  return host::node_of_device(name.data());
}

} // namespace

Arena::Arena(c10::DeviceIndex device, const Settings& settings)
    : settings_(settings),
      node_(node_of(device)),
      pinner_(device, node_),
      by_node_(host::nodes(), 0) {}

bool Arena::take(const Demand& demand, HostBuffer& buffer) {
  const size_t size = round_up(std::max<size_t>(demand.bytes, 1), kAlign);
  if (!provide(size, demand)) {
    return false;
  }
  const size_t spare = std::min(demand.spare, size - 1) / kAlign * kAlign;
  fit(size - spare, buffer);
  fit_at_end(spare, buffer);
  pin_ahead(size - spare, demand.coming + spare);
  return true;
}

bool Arena::extend(const Demand& demand, HostBuffer& buffer) {
  const size_t size = round_up(demand.bytes, kAlign);
  if (!provide(size, demand)) {
    return false;
  }
  fit_at_end(size, buffer);
  return true;
}

void Arena::shrink(HostBuffer& buffer, size_t bytes) {
  const size_t kept = round_up(std::max<size_t>(bytes, 1), kAlign);
  while (buffer.size() > kept) {
    const HostPart end = buffer.cut(buffer.size() - kept);
    used_.add(-static_cast<int64_t>(end.size));
    busy_.add(-static_cast<int64_t>(end.size));
    insert(end.data, end.size);
  }
}

void Arena::give(HostBuffer buffer, EventRef copied, Freed freed) {
  used_.add(-static_cast<int64_t>(buffer.size()));
  Pending pending{std::move(buffer), std::move(copied), std::move(freed)};
  if (pending.copied) {
    pending_.push_back(std::move(pending));
  } else {
    free(pending);
  }
}

void Arena::prepare() {
  if (slabs_.empty() || wanted_ > 0) {
    pin_ahead(free_bytes_ + 1, 0);
  }
}

size_t Arena::reserve(size_t bytes) {
  wait_for_pinner();
  while (current() < bytes) {
    wanted_ = std::max(bytes - current(), kSmallestSlab);
    grow();
  }
  return current();
}

size_t Arena::trim() {
  wait_for_pinner();
  collect();
  size_t released = 0;
  // One at a time, so that other threads can use the others meanwhile.
  for (size_t left = slabs_.size(); left > 0; --left) {
    std::unique_ptr<Slab> slab = take_idle();
    if (!slab) {
      break;
    }
    try {
      const Lock::Pause pause; // the driver waits for the device
      slab->release();
    } catch (const c10::Error&) {
      add(std::move(slab));
      throw;
    }
    released += slab->size();
    Budget::get().give(slab->size());
  }
  return released;
}

// Removes a slab that contains no buffer; null if there is none.
std::unique_ptr<Slab> Arena::take_idle() {
  for (auto slab = slabs_.begin(); slab != slabs_.end(); ++slab) {
    const auto range = free_.find(slab->first);
    if (range != free_.end() && range->second == slab->second->size()) {
      forget(range);
      std::unique_ptr<Slab> idle = std::move(slab->second);
      slabs_.erase(slab);
      subtract(*idle);
      return idle;
    }
  }
  return nullptr;
}

void Arena::reset_peak() {
  pinned_.reset_peak();
  used_.reset_peak();
  busy_.reset_peak();
}

void Arena::reset_accumulated() {
  pinned_.reset_accumulated();
  used_.reset_accumulated();
  busy_.reset_accumulated();
}

// Sees to it that a buffer of this size can be taken. Returns false as take() does.
bool Arena::provide(size_t bytes, const Demand& demand) {
  collect(kFew);
  if (by_size_.lower_bound(bytes) == by_size_.end()) {
    collect(); // the buffer has fewer parts then
  }
  while (const size_t more = lacking(bytes)) {
    if (pinning()) {
      return false;
    }
    if (pinner_.bytes() > 0) {
      take_over();
      continue;
    }
    if (pending_.empty() && demand.coming < std::max(kWorthWaiting, slab_bytes())) {
      wanted_ = std::max(wanted_, more);
    }
    return false;
  }
  wanted_ = 0;
  used_.add(static_cast<int64_t>(bytes));
  busy_.add(static_cast<int64_t>(bytes));
  return true;
}

// How many bytes have to be pinned before a buffer of this size can be taken.
size_t Arena::lacking(size_t bytes) const {
  size_t found = 0;
  for (auto range = by_size_.rbegin(); range != by_size_.rend(); ++range) {
    if (range->first >= bytes) {
      return 0;
    }
    if (range->first < kSmallestPart) {
      break;
    }
    found += range->first;
    if (found >= bytes) {
      return 0;
    }
  }
  return bytes - found;
}

// There must be enough free memory: see lacking(). Takes the largest ranges first, so that there
// are few parts, and cuts the last part from the range that it fits best.
void Arena::fit(size_t bytes, HostBuffer& buffer) {
  for (size_t left = bytes; left > 0;) {
    const auto best = by_size_.lower_bound(left);
    const auto range = free_.find((best == by_size_.end() ? std::prev(best) : best)->second);
    char* const data = range->first;
    const size_t size = range->second;
    const size_t part = std::min(left, size);
    forget(range);
    if (size > part) {
      insert(data + part, size - part);
    }
    buffer.add(data, part);
    left -= part;
  }
}

// The same for memory that is given back before what is around it. It is cut from the other end of
// the largest ranges, so that it leaves no gaps between buffers that stay.
void Arena::fit_at_end(size_t bytes, HostBuffer& buffer) {
  for (size_t left = bytes; left > 0;) {
    const auto range = free_.find(std::prev(by_size_.end())->second);
    char* const data = range->first;
    const size_t size = range->second;
    const size_t part = std::min(left, size);
    forget(range);
    if (size > part) {
      insert(data, size - part);
    }
    buffer.add(data + (size - part), part);
    left -= part;
  }
}

void Arena::free(const Pending& pending) {
  if (pending.freed) {
    pending.freed(pending.buffer);
  }
  busy_.add(-static_cast<int64_t>(pending.buffer.size()));
  for (const HostPart& part : pending.buffer.parts()) {
    insert(part.data, part.size);
  }
}

void Arena::insert(char* data, size_t size) {
  // Two slabs can happen to be adjacent. A range must not span both, because each slab is unpinned
  // separately.
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
  free_bytes_ += size;
}

Arena::Range Arena::forget(Range range) {
  auto sized = by_size_.equal_range(range->second);
  by_size_.erase(std::find_if(sized.first, sized.second, [&](const auto& e) {
    return e.second == range->first;
  }));
  free_bytes_ -= range->second;
  return free_.erase(range);
}

void Arena::add(std::unique_ptr<Slab> slab) {
  char* const data = slab->data();
  const size_t size = slab->size();
  for (size_t node = 0; node < by_node_.size(); ++node) {
    by_node_[node] += slab->by_node()[node];
  }
  slabs_.emplace(data, std::move(slab));
  pinned_.add(static_cast<int64_t>(size));
  insert(data, size);
}

// The opposite, after the slab's memory was forgotten.
void Arena::subtract(const Slab& slab) {
  pinned_.add(-static_cast<int64_t>(slab.size()));
  for (size_t node = 0; node < by_node_.size(); ++node) {
    by_node_[node] -= slab.by_node()[node];
  }
}

// The size of a slab grows with the arena, so that little is pinned in vain (two slabs are a tenth
// of the arena) and few slabs are needed.
size_t Arena::slab_bytes() const {
  return std::min(std::max(kSmallestSlab, Slab::rounded(current() / 20)), kLargestSlab);
}

void Arena::grow() {
  const size_t needed = Slab::rounded(std::exchange(wanted_, 0));
  const size_t slab = std::max(needed, slab_bytes());
  try {
    pin(slab);
  } catch (const c10::Error&) {
    if (slab == needed) {
      throw;
    }
    pin(needed); // without the surplus
  }
}

// Pauses the mutex.
void Arena::pin(size_t bytes) {
  Budget& budget = Budget::get();
  std::string why;
  TORCH_CHECK(
      budget.take(bytes, settings_.host_limit, why),
      "LMS: ",
      bytes,
      " bytes of host memory cannot be pinned: ",
      why);
  std::unique_ptr<Slab> slab;
  try {
    const Lock::Pause pause; // the driver may wait for the device
    slab = std::make_unique<Slab>(bytes, node_);
  } catch (...) {
    budget.give(bytes);
    throw;
  }
  add(std::move(slab));
}

// Starts to pin the next slab if the memory that is free, or will be soon, is not enough for
// another request of this size.
void Arena::pin_ahead(size_t bytes, size_t coming) {
  const size_t slab = std::max(slab_bytes(), Slab::rounded(wanted_));
  if (pinner_.bytes() > 0 || free_bytes_ + coming >= std::min(bytes, slab)) {
    return;
  }
  std::string why;
  if (Budget::get().take(slab, settings_.host_limit, why)) {
    try {
      pinner_.start(slab);
    } catch (const std::system_error&) {
      Budget::get().give(slab); // there is no thread for it: who needs the memory pins it
    }
  }
}

// Takes over the pinner's slab, which must be ready, if it could be pinned.
void Arena::take_over() {
  const size_t bytes = pinner_.bytes();
  if (std::unique_ptr<Slab> slab = pinner_.finish()) {
    add(std::move(slab));
  } else {
    Budget::get().give(bytes);
  }
}

// Pauses the mutex, and takes over the pinner's slab if there is one.
void Arena::wait_for_pinner() {
  while (pinning()) {
    const Lock::Pause pause;
    pinner_.wait();
  }
  if (pinner_.bytes() > 0) {
    take_over();
  }
}

// Frees at most so many buffers.
void Arena::collect(size_t most) {
  // The buffers are in the order of give(), which is nearly the order in which their copies end.
  size_t misses = 0;
  size_t left = most;
  for (auto entry = pending_.begin(); entry != pending_.end() && misses < kMisses && left > 0;) {
    if (!entry->copied->done()) {
      ++entry;
      ++misses;
      continue;
    }
    free(*entry);
    entry = pending_.erase(entry);
    --left;
  }
}

void Arena::finished(const EventRef& copied) {
  for (auto entry = pending_.begin(); entry != pending_.end();) {
    if (entry->copied == copied) {
      free(*entry);
      entry = pending_.erase(entry);
    } else {
      ++entry;
    }
  }
}

} // namespace torch::cuda::lms

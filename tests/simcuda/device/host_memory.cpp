#include <sys/mman.h>

#include <cstring>

#include "memory.h"

namespace simcuda {
namespace {

constexpr size_t kPage = 4096;
constexpr int kNewHostByte = 0xA6;
constexpr size_t kQuarantineLength = 256; // ranges

size_t mapped_size(size_t size) {
  return (size + kPage - 1) / kPage * kPage;
}

} // namespace

cudaError_t HostMemory::allocate(size_t size, void** pointer) {
  *pointer = nullptr;
  if (size == 0)
    return cudaSuccess;
  if (limit_ != 0 && bytes_ + size > limit_)
    return cudaErrorMemoryAllocation;
  void* at =
      mmap(nullptr, mapped_size(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return cudaErrorMemoryAllocation;
  if (poison_)
    std::memset(at, kNewHostByte, size);
  ranges_[reinterpret_cast<uintptr_t>(at)] = {size, true};
  bytes_ += size;
  *pointer = at;
  return cudaSuccess;
}

cudaError_t HostMemory::free(void* pointer) {
  const auto it = ranges_.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == ranges_.end() || !it->second.allocated)
    return cudaErrorInvalidValue;
  const auto [address, range] = *it;
  bytes_ -= range.size;
  ranges_.erase(it);
  const size_t mapped = mapped_size(range.size);
  mmap(pointer, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  quarantine_.emplace_back(address, mapped);
  if (quarantine_.size() > kQuarantineLength) {
    munmap(reinterpret_cast<void*>(quarantine_.front().first), quarantine_.front().second);
    quarantine_.pop_front();
  }
  return cudaSuccess;
}

cudaError_t HostMemory::add(void* pointer, size_t size) {
  if (pointer == nullptr || size == 0)
    return cudaErrorInvalidValue;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto next = ranges_.lower_bound(address);
  if (pinned(pointer) || (next != ranges_.end() && next->first < address + size)) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  if (limit_ != 0 && bytes_ + size > limit_)
    return cudaErrorMemoryAllocation;
  ranges_[address] = {size, false};
  bytes_ += size;
  return cudaSuccess;
}

cudaError_t HostMemory::remove(void* pointer) {
  const auto it = ranges_.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == ranges_.end() || it->second.allocated)
    return cudaErrorHostMemoryNotRegistered;
  bytes_ -= it->second.size;
  ranges_.erase(it);
  return cudaSuccess;
}

bool HostMemory::pinned(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto it = ranges_.upper_bound(address);
  return it != ranges_.begin() && address < std::prev(it)->first + std::prev(it)->second.size;
}

bool HostMemory::freed(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (const auto& [begin, size] : quarantine_) {
    if (address >= begin && address < begin + size)
      return true;
  }
  return false;
}

size_t HostMemory::size_of(const void* pointer) const {
  const auto it = ranges_.find(reinterpret_cast<uintptr_t>(pointer));
  return it == ranges_.end() ? 0 : it->second.size;
}

} // namespace simcuda

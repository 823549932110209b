#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "memory.h"

extern "C" void __tsan_init() __attribute__((weak));

namespace simcuda {
namespace {

// Device d owns the addresses [kArenaBase + d * kArenaStride, + kArenaSize). Its bytes are mapped
// kViewOffset below. The numbers are chosen to avoid the addresses where Linux maps programs, heaps
// and libraries, and where sanitizers keep their shadow memory.
constexpr uintptr_t kArenaBase = 0x490000000000;
constexpr uintptr_t kArenaStride = uintptr_t{1} << 39;
constexpr size_t kArenaSize = size_t{1} << 38;
constexpr uintptr_t kViewOffset = uintptr_t{1} << 43;

constexpr size_t kSmallPage = 4096;
constexpr size_t kSmallAllocation = 1u << 20; // bytes; smaller allocations use small pages
constexpr int kNewDeviceByte = 0xA5; // as a float, a tiny negative number that is never plausible
constexpr int kReturnedByte = 0xDD;

constexpr int kArenaFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

uintptr_t arena_begin(int device) {
  return kArenaBase + static_cast<uintptr_t>(device) * kArenaStride;
}

void* view_of(uintptr_t address) {
  return reinterpret_cast<void*>(address - kViewOffset);
}

// Not mmap(), because ThreadSanitizer's version refuses these addresses.
bool map_at(void* address, size_t size, int protection, int flags, int file = -1, off_t from = 0) {
  const long got = syscall(SYS_mmap, address, size, protection, flags, file, from);
  return got == static_cast<long>(reinterpret_cast<intptr_t>(address));
}

size_t round_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

// The last range that starts at or before the address, or end().
template <class Map>
auto at_or_before(Map& map, uintptr_t address) {
  auto it = map.upper_bound(address);
  return it == map.begin() ? map.end() : std::prev(it);
}

} // namespace

DeviceMemory::DeviceMemory(const Options& options)
    : devices_(options.devices),
      poison_(options.poison),
      // In asynchronous mode, work that was given to the device earlier may still use the memory.
      poison_returned_(options.poison && !options.async),
      capacity_(options.device_bytes) {}

bool DeviceMemory::map_arena(int device) {
  if (arena_mapped_[device])
    return true;
  const uintptr_t begin = arena_begin(device);
  // ThreadSanitizer maps address ranges that it considers unused, without access.
  const int flags = kArenaFlags | (__tsan_init ? MAP_FIXED : MAP_FIXED_NOREPLACE);
  for (void* at : {reinterpret_cast<void*>(begin), view_of(begin)}) {
    if (!map_at(at, kArenaSize, PROT_NONE, flags)) {
      std::perror("simcuda: cannot reserve the addresses of a device");
      return false;
    }
  }
  next_address_[device] = begin + kLargePage; // a null-like offset is never a valid pointer
  return arena_mapped_[device] = true;
}

// Next fit: goes through the whole arena before it uses an address again. First fit if
// reuse_addresses() asked for it.
uintptr_t DeviceMemory::find_addresses(int device, size_t size) {
  const uintptr_t begin = arena_begin(device) + kLargePage;
  const uintptr_t end = arena_begin(device) + kArenaSize;
  for (uintptr_t start : {reuse_addresses_ ? begin : next_address_[device], begin}) {
    uintptr_t at = start;
    while (at + size <= end) {
      auto it = at_or_before(address_ranges_, at + size - 1);
      if (it == address_ranges_.end() || it->first + it->second <= at) {
        next_address_[device] = at + size;
        return at;
      }
      at = round_up(it->first + it->second, kLargePage);
    }
  }
  return 0;
}

cudaError_t DeviceMemory::allocate(int device, size_t size, uintptr_t* address) {
  size = round_up(size, size < kSmallAllocation ? kSmallPage : kLargePage);
  if (used_[device] + size > capacity_ || !map_arena(device))
    return cudaErrorMemoryAllocation;
  const uintptr_t at = find_addresses(device, round_up(size, kLargePage));
  if (at == 0)
    return cudaErrorMemoryAllocation;
  if (mprotect(view_of(at), size, PROT_READ | PROT_WRITE) != 0)
    return cudaErrorMemoryAllocation;
  if (poison_)
    std::memset(view_of(at), kNewDeviceByte, size);
  blocks_[at] = {size, device, 0};
  address_ranges_[at] = round_up(size, kLargePage);
  used_[device] += size;
  *address = at;
  return cudaSuccess;
}

cudaError_t DeviceMemory::free(uintptr_t address) {
  auto it = blocks_.find(address);
  if (it == blocks_.end() || it->second.physical != 0)
    return cudaErrorInvalidValue;
  const Block block = it->second;
  take_block(address, block.size);
  map_at(view_of(address), block.size, PROT_NONE, kArenaFlags | MAP_FIXED);
  used_[block.device] -= block.size;
  blocks_.erase(it);
  address_ranges_.erase(address);
  return cudaSuccess;
}

cudaError_t DeviceMemory::reserve(int device, size_t size, uintptr_t* address) {
  size = round_up(size, kLargePage);
  if (!map_arena(device))
    return cudaErrorMemoryAllocation;
  const uintptr_t at = find_addresses(device, size);
  if (at == 0)
    return cudaErrorMemoryAllocation;
  address_ranges_[at] = size;
  *address = at;
  return cudaSuccess;
}

cudaError_t DeviceMemory::unreserve(uintptr_t address) {
  return address_ranges_.erase(address) != 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t DeviceMemory::create_physical(int device, size_t size, uint64_t* handle) {
  if (used_[device] + size > capacity_)
    return cudaErrorMemoryAllocation;
  const int file = memfd_create("simcuda", MFD_CLOEXEC);
  if (file < 0)
    return cudaErrorMemoryAllocation;
  if (ftruncate(file, static_cast<off_t>(size)) != 0) {
    close(file);
    return cudaErrorMemoryAllocation;
  }
  used_[device] += size;
  *handle = next_physical_++;
  physical_[*handle] = {file, size, device, 1};
  return cudaSuccess;
}

cudaError_t DeviceMemory::release_physical(uint64_t handle) {
  if (physical_.count(handle) == 0)
    return cudaErrorInvalidValue;
  unreference(handle);
  return cudaSuccess;
}

void DeviceMemory::unreference(uint64_t handle) {
  auto it = physical_.find(handle);
  if (it == physical_.end() || --it->second.references > 0)
    return;
  close(it->second.file);
  used_[it->second.device] -= it->second.size;
  physical_.erase(it);
}

cudaError_t DeviceMemory::map(uintptr_t address, size_t size, size_t offset, uint64_t handle) {
  auto it = physical_.find(handle);
  if (it == physical_.end() || offset + size > it->second.size)
    return cudaErrorInvalidValue;
  const bool mapped = map_at(
      view_of(address),
      size,
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_FIXED,
      it->second.file,
      static_cast<off_t>(offset));
  if (!mapped)
    return cudaErrorMemoryAllocation;
  ++it->second.references;
  blocks_[address] = {size, it->second.device, handle};
  if (poison_)
    std::memset(view_of(address), kNewDeviceByte, size);
  return cudaSuccess;
}

cudaError_t DeviceMemory::unmap(uintptr_t address, size_t size) {
  for (auto it = blocks_.lower_bound(address); it != blocks_.end() && it->first < address + size;) {
    if (it->second.physical == 0)
      return cudaErrorInvalidValue;
    unreference(it->second.physical);
    it = blocks_.erase(it);
  }
  take_block(address, size);
  map_at(view_of(address), size, PROT_NONE, kArenaFlags | MAP_FIXED);
  return cudaSuccess;
}

void DeviceMemory::return_block(uintptr_t address, size_t size) {
  if (poison_returned_ && accessible(address, size))
    std::memset(view_of(address), kReturnedByte, size);
  idle_[address] = size;
}

void DeviceMemory::take_block(uintptr_t address, size_t size) {
  const uintptr_t end = address + size;
  auto it = at_or_before(idle_, address);
  if (it == idle_.end() || it->first + it->second <= address)
    it = idle_.lower_bound(address);
  while (it != idle_.end() && it->first < end) { // keep the parts outside of the range
    const uintptr_t idle_begin = it->first;
    const uintptr_t idle_end = it->first + it->second;
    it = idle_.erase(it);
    if (idle_begin < address)
      idle_[idle_begin] = address - idle_begin;
    if (idle_end > end)
      it = idle_.emplace(end, idle_end - end).first;
  }
}

bool DeviceMemory::idle_within(uintptr_t address, size_t size) const {
  const auto it = at_or_before(idle_, address + size - 1);
  return it != idle_.end() && it->first + it->second > address;
}

int DeviceMemory::device_of(uintptr_t address) const {
  if (address < kArenaBase || address >= arena_begin(devices_))
    return -1;
  return static_cast<int>((address - kArenaBase) / kArenaStride);
}

std::pair<uintptr_t, size_t> DeviceMemory::allocation_of(uintptr_t address) const {
  const auto it = at_or_before(blocks_, address);
  if (it == blocks_.end() || address >= it->first + it->second.size)
    return {0, 0};
  return {it->first, it->second.size};
}

int DeviceMemory::owner_of(uintptr_t address) const {
  const auto [begin, size] = allocation_of(address);
  return size == 0 ? -1 : blocks_.at(begin).device;
}

bool DeviceMemory::accessible(uintptr_t address, size_t size) const {
  if (device_of(address) < 0 || size == 0)
    return true;
  if (idle_within(address, size))
    return false;
  const uintptr_t end = address + size;
  while (address < end) {
    const auto [begin, length] = allocation_of(address);
    if (length == 0)
      return false;
    address = begin + length; // adjacent mappings continue an expandable segment
    if (address < end && blocks_.at(begin).physical == 0)
      return false;
  }
  return true;
}

char* DeviceMemory::host_view(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return reinterpret_cast<char*>(device_of(address) < 0 ? address : address - kViewOffset);
}

} // namespace simcuda

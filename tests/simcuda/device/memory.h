// Device and pinned host memory.
//
// A device pointer is an address of this process that cannot be accessed: host code that
// dereferences one crashes, as it would with a GPU. The bytes are mapped at a fixed distance from
// it (see host_view()), and can be accessed only while they are allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "cuda_types.h"
#include "options.h"

namespace simcuda {

inline constexpr size_t kLargePage = 2u << 20;

class DeviceMemory {
 public:
  explicit DeviceMemory(const Options& options);

  // cudaMalloc and cudaFree. Addresses are not reused soon, so that a use after free hits
  // inaccessible memory instead of the next owner's; see reuse_addresses().
  cudaError_t allocate(int device, size_t size, uintptr_t* address);
  cudaError_t free(uintptr_t address);

  // Virtual memory management (expandable segments): addresses and memory are separate.
  cudaError_t reserve(int device, size_t size, uintptr_t* address);
  cudaError_t unreserve(uintptr_t address);
  cudaError_t create_physical(int device, size_t size, uint64_t* handle);
  cudaError_t release_physical(uint64_t handle);
  cudaError_t map(uintptr_t address, size_t size, size_t offset, uint64_t handle);
  cudaError_t unmap(uintptr_t address, size_t size);

  // Called when a caching allocator takes back or hands out a part of an allocation. What it has
  // taken back is not accessible until it is handed out again.
  void return_block(uintptr_t address, size_t size);
  void take_block(uintptr_t address, size_t size);

  // The device whose address range holds the pointer, or -1 for a host pointer.
  int device_of(uintptr_t address) const;
  // The device whose live memory holds the pointer, or -1.
  int owner_of(uintptr_t address) const;
  // Whether all of [address, address + size) is live device memory, or is not device memory at all.
  bool accessible(uintptr_t address, size_t size) const;
  // The bounds of the live allocation that holds the pointer; size 0 when there is none.
  std::pair<uintptr_t, size_t> allocation_of(uintptr_t address) const;
  // The host address of the bytes behind a device pointer. A host pointer is returned unchanged.
  char* host_view(const void* pointer) const;

  size_t used(int device) const {
    return used_[device];
  }
  size_t capacity() const {
    return capacity_;
  }
  void set_capacity(size_t bytes) {
    capacity_ = bytes;
  }
  // Reuses addresses at once, the lowest first, as a driver may do.
  void reuse_addresses(bool reuse) {
    reuse_addresses_ = reuse;
  }

 private:
  struct Block {
    size_t size;
    int device;
    uint64_t physical; // 0 if the block is from allocate()
  };
  struct Physical {
    int file;
    size_t size;
    int device;
    int references;
  };

  bool map_arena(int device);
  uintptr_t find_addresses(int device, size_t size);
  void unreference(uint64_t handle);
  bool idle_within(uintptr_t address, size_t size) const;

  int devices_;
  bool poison_;
  bool poison_returned_;
  bool reuse_addresses_ = false;
  size_t capacity_;
  size_t used_[kMaxDevices] = {};
  bool arena_mapped_[kMaxDevices] = {};
  uintptr_t next_address_[kMaxDevices] = {};
  std::map<uintptr_t, Block> blocks_; // live memory, by address
  std::map<uintptr_t, size_t> address_ranges_; // addresses in use: allocated or reserved
  std::map<uintptr_t, size_t> idle_; // parts that a caching allocator has taken back
  std::map<uint64_t, Physical> physical_;
  uint64_t next_physical_ = 1;
};

class HostMemory {
 public:
  explicit HostMemory(const Options& options)
      : poison_(options.poison), limit_(options.host_bytes) {}

  cudaError_t allocate(size_t size, void** pointer);
  cudaError_t free(void* pointer);
  cudaError_t add(void* pointer, size_t size); // cudaHostRegister
  cudaError_t remove(void* pointer); // cudaHostUnregister

  bool pinned(const void* pointer) const;
  // Whether the pointer points into pinned memory that was freed recently.
  bool freed(const void* pointer) const;
  // The size of the pinned range that starts at the pointer, 0 when there is none.
  size_t size_of(const void* pointer) const;

  size_t bytes() const {
    return bytes_;
  }
  size_t count() const {
    return ranges_.size();
  }
  void set_limit(size_t bytes) {
    limit_ = bytes;
  }

 private:
  struct Range {
    size_t size;
    bool allocated; // by allocate(); otherwise registered
  };

  bool poison_;
  size_t limit_;
  size_t bytes_ = 0;
  std::map<uintptr_t, Range> ranges_;
  // Freed ranges stay reserved and inaccessible for a while, so that a late use is an error.
  std::deque<std::pair<uintptr_t, size_t>> quarantine_;
};

} // namespace simcuda

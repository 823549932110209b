// A C++ extension that reads and writes tensors without going through PyTorch's dispatcher: it
// takes their addresses from their storages, and issues its work on a stream.

#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstring>
#include <exception>

// Functions of the CUDA runtime that PyTorch has loaded. Declared here, so that no CUDA header is
// needed.
extern "C" int cudaMemcpyAsync(void*, const void*, size_t, int, void*);
extern "C" int cudaMemsetAsync(void*, int, size_t, void*);

namespace {

constexpr int kDeviceToDevice = 3;

// Throws if the storage has no memory.
char* address(const c10::StorageImpl* storage) {
  return static_cast<char*>(const_cast<void*>(static_cast<const void*>(storage->data())));
}

// Returns the function's status; or -1 and the message, if it throws.
template <typename Function>
int guarded(char* message, size_t room, Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), room - 1);
    return -1;
  }
}

} // namespace

extern "C" int unseen_fill(
    const c10::StorageImpl* target,
    size_t offset,
    size_t size,
    int value,
    void* stream,
    char* message,
    size_t room) {
  return guarded(message, room, [&] {
    return cudaMemsetAsync(address(target) + offset, value, size, stream);
  });
}

extern "C" int unseen_copy(
    const c10::StorageImpl* source,
    size_t source_offset,
    const c10::StorageImpl* target,
    size_t target_offset,
    size_t size,
    void* stream,
    char* message,
    size_t room) {
  return guarded(message, room, [&] {
    const char* const from = address(source) + source_offset;
    return cudaMemcpyAsync(address(target) + target_offset, from, size, kDeviceToDevice, stream);
  });
}

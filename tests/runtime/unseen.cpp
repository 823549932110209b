// A C++ extension that reads and writes tensors without going through PyTorch's dispatcher: it
// takes their addresses from their storages, and issues its work on a stream.

#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>
#include <utility>

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

// What was written: addresses and sizes.
struct Writes {
  std::mutex mutex;
  std::set<std::pair<const void*, size_t>> all;
};
Writes& writes() {
  static Writes instance;
  return instance;
}

void* note(void* target, size_t size) {
  const std::lock_guard<std::mutex> lock(writes().mutex);
  writes().all.emplace(target, size);
  return target;
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
    return cudaMemsetAsync(note(address(target) + offset, size), value, size, stream);
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
    void* const to = note(address(target) + target_offset, size);
    return cudaMemcpyAsync(to, from, size, kDeviceToDevice, stream);
  });
}

// Whether this is what one of the functions has written.
extern "C" bool unseen_has_written(const void* target, size_t size) {
  const std::lock_guard<std::mutex> lock(writes().mutex);
  return writes().all.count({target, size}) > 0;
}

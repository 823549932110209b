// The interface for tests (simcuda/device.py) and for the operators (ops/).
#pragma once

#include <cstddef>

extern "C" {

// Where the host finds the bytes behind a device pointer.
void* simcuda_host_view(const void* pointer);

// An operator starts on the stream: it runs on the calling thread, in the stream's order. Returns a
// CUDA error. `name` must live as long as the process.
int simcuda_operator_begin(void* stream, int device);
// Whether [pointer, pointer + size) is device memory that may be used.
int simcuda_is_live(const void* pointer, size_t size);
// The operator reads or writes [pointer, pointer + size), which is live.
void simcuda_operator_access(
    void* stream,
    const void* pointer,
    size_t size,
    int write,
    const char* name);

// A caching allocator handed out, or took back, a part of what it has from the device.
void simcuda_block_allocated(void* pointer, size_t size);
void simcuda_block_freed(void* pointer, size_t size);
}

// The interface for tests (simcuda/device.py) and for the operators (ops/).
#pragma once

#include <cstddef>

extern "C" {

// The host address of the bytes behind a device pointer.
void* simcuda_host_view(const void* pointer);

// An operator starts on the stream. It runs on the calling thread, in the order of the stream.
// Returns a CUDA error. `name` must stay valid until the process ends.
int simcuda_operator_begin(void* stream, int device);
// With SIMCUDA_TIMING: the calling thread issues an operator, which takes it so long, and the
// stream, too. Returns a CUDA error.
int simcuda_operator_takes(void* stream, int device, double seconds, double host_seconds);
// The host's time, in seconds since the start.
double simcuda_host_time();
// Whether [pointer, pointer + size) is live device memory.
int simcuda_is_live(const void* pointer, size_t size);
// The operator reads or writes [pointer, pointer + size), which is live.
void simcuda_operator_access(
    void* stream,
    const void* pointer,
    size_t size,
    int write,
    const char* name);

// A caching allocator has handed out or taken back a part of its device memory.
void simcuda_block_allocated(void* pointer, size_t size);
void simcuda_block_freed(void* pointer, size_t size);
}

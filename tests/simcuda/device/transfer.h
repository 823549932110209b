// Copies and fills: the work that the simulated device actually does.
#pragma once

#include <cstddef>

#include "cuda_types.h"

namespace simcuda {

// Copies `rows` rows of `width` bytes, the rows `*_pitch` bytes apart. `synchronous` returns when
// the copy is done, as cudaMemcpy does.
struct Copy {
  void* to;
  size_t to_pitch;
  const void* from;
  size_t from_pitch;
  size_t width;
  size_t rows;
};
cudaError_t copy(const char* api, const Copy& copy, cudaStream_t stream, bool synchronous);

cudaError_t copy(
    const char* api,
    void* to,
    const void* from,
    size_t size,
    cudaStream_t stream,
    bool synchronous);

// Fills [to, to + count * unit) with the `unit` bytes of `value`.
cudaError_t fill(
    const char* api,
    void* to,
    unsigned value,
    size_t unit,
    size_t count,
    cudaStream_t stream,
    bool synchronous);

} // namespace simcuda

#pragma once

// CUDA C++14, which NVRTC compiles on the user's machine and g++ for the simulated device. A text
// uses what is in those before it.
namespace torch::cuda::lms::codec::text {

extern const char* const kWarp;
extern const char* const kHash;
extern const char* const kPace;
extern const char* const kFormat;
extern const char* const kFloats;
extern const char* const kFields;
extern const char* const kChunk;

} // namespace torch::cuda::lms::codec::text

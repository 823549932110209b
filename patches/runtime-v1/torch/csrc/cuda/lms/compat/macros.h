#pragma once

// Defines macros of later releases. Included before each source file of the runtime: see lms.cmake.

#include <c10/util/Exception.h>

#include <mutex>

#ifndef TORCH_CHECK // PyTorch 1.1
#define TORCH_CHECK AT_CHECK
#define TORCH_INTERNAL_ASSERT AT_ASSERT
#define TORCH_WARN AT_WARN
#endif

#ifndef TORCH_WARN_ONCE // before PyTorch 1.3
#define TORCH_WARN_ONCE(...)                                  \
  {                                                           \
    static std::once_flag warned;                             \
    std::call_once(warned, [&] { TORCH_WARN(__VA_ARGS__); }); \
  }
#endif

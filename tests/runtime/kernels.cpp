// A C interface of the release check, for tests. A function that fails returns a negative number,
// and error() returns the reason.
#include <dlfcn.h>

#include <set>
#include <string>

namespace {
bool hide = false;
std::set<std::string> hidden_functions;
void* find_library(const char* name, int flags) {
  return hide ? nullptr : dlopen(name, flags);
}
void* find_function(void* library, const char* name) {
  return hidden_functions.count(name) > 0 ? nullptr : dlsym(library, name);
}
} // namespace

#define dlopen find_library
#define dlsym find_function
#include <torch/csrc/cuda/lms/kernel/library.cpp>
#undef dlopen
#undef dlsym

#include <torch/csrc/cuda/lms/codec/hash.cpp>
#include <torch/csrc/cuda/lms/kernel/cache.cpp>
#include <torch/csrc/cuda/lms/kernel/checker.cpp>
#include <torch/csrc/cuda/lms/kernel/checksum.cpp>
#include <torch/csrc/cuda/lms/kernel/module.cpp>
#include <torch/csrc/cuda/lms/kernel/zeroed.cpp>

using namespace torch::cuda::lms;

namespace {

std::string failure;

template <typename Work>
int64_t attempt(Work work) {
  try {
    return static_cast<int64_t>(work());
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
    return -1;
  }
}

} // namespace

extern "C" {

const char* error() {
  return failure.c_str();
}

void hide_libraries(bool hidden) {
  hide = hidden;
}

// Libraries made from now on lack the function. With null, they lack none.
void hide_function(const char* name) {
  if (name != nullptr) {
    hidden_functions.insert(name);
  } else {
    hidden_functions.clear();
  }
}

// Resets the state to that of a process that has not compiled anything yet.
void forget_images() {
  Images::get().by_key.clear();
}

int64_t target_of(int capability) {
  return attempt([&] {
    const Library library;
    const Target chosen = target(library, capability);
    failure = chosen.name();
    return 0;
  });
}

Checker* checker_new(int device) {
  return new Checker(static_cast<c10::DeviceIndex>(device));
}

void checker_delete(Checker* checker) {
  delete checker;
}

bool checker_available(Checker* checker) {
  return checker->available();
}

const char* checker_why(Checker* checker) {
  return checker->why().c_str();
}

int64_t checker_take(Checker* checker) {
  return attempt([&] { return checker->take(); });
}

void checker_give(Checker* checker, uint32_t slot) {
  checker->give(slot);
}

int64_t
checker_hash(Checker* checker, uint32_t slot, const void* data, size_t bytes, cudaStream_t stream) {
  return attempt([&] {
    checker->hash(slot, data, bytes, Checker::Pace::Beside, stream);
    return 0;
  });
}

int64_t checker_check(
    Checker* checker,
    uint32_t slot,
    const void* data,
    size_t bytes,
    char* const* parts,
    const size_t* sizes,
    size_t count,
    cudaStream_t stream) {
  return attempt([&] {
    HostBuffer host;
    for (size_t i = 0; i < count; ++i) {
      host.add(parts[i], sizes[i]);
    }
    checker->check(slot, data, bytes, stream);
    checker->restore(slot, data, bytes, host, stream);
    return 0;
  });
}

uint64_t checker_caught(Checker* checker) {
  return checker->caught();
}

uint32_t checker_last_caught(Checker* checker) {
  return checker->last_caught();
}

} // extern "C"

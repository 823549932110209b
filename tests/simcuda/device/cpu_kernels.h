// CUDA C++ compiled for the CPU, from the same source that a GPU gets.
//
// A kernel runs its blocks one after another, each with one thread. Source code that supports this
// uses LMS_THREADS, which is 1 here. The parameters tell which memory a kernel uses: it writes the
// memory behind a pointer that is not null (or only reads it, if the pointer is const), and so for
// the memory that a structure with the members `data` and `size` describes. What it does with other
// memory is declared with LMS_READS and LMS_WRITES. Other pointers in structures point to host
// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace simcuda {

// Functions that a compiled kernel calls. `state` belongs to the code that launches it.
struct KernelHooks {
  void* state;
  void* (*view)(const void* pointer);
  // Whether the kernel, which is about to be enqueued, may access the bytes.
  int (*touch)(void* state, const void* pointer, size_t size, int write);
  // The kernel is running, and reads or writes the bytes.
  void (*used)(void* state, const void* pointer, size_t size, int write);
  // Called at the end: the most nanoseconds that a thread block has slept.
  void (*napped)(void* state, unsigned long long nanoseconds);
  // The kernel has stopped with an error.
  void (*trap)(void* state);
};

bool for_the_cpu(const std::string& source);

// Returns an image for cuModuleLoadData(), or "" and the compiler's messages.
std::string compile_for_the_cpu(const std::string& source, std::string* log);

// Owns the library in an image.
class CpuModule {
 public:
  static std::unique_ptr<CpuModule> load(const void* image); // null if it is not an image
  CpuModule(const CpuModule&) = delete;
  CpuModule& operator=(const CpuModule&) = delete;
  ~CpuModule();

  struct Kernel {
    const char* name;
    // Prepares a launch with these parameters. Returns null if it would access memory that it may
    // not.
    void* (*prepare)(const KernelHooks*, void** parameters);
    // Runs the prepared launch, and frees it.
    void (*run)(const KernelHooks*, void* work, unsigned blocks);
  };
  bool find(const std::string& name, Kernel* kernel) const;

 private:
  CpuModule(int file, void* library) : file_(file), library_(library) {}

  int file_; // its number is part of the library's name
  void* library_;
};

} // namespace simcuda

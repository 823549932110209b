// CUDA C++ compiled for the CPU: the very source that a GPU would get.
//
// A kernel runs its blocks one after another, each of one thread: LMS_THREADS, by which a source
// says that it can be compiled so, is 1. Its parameters say what it touches: memory behind a
// pointer is read, or written unless it is const, and so is what a parameter `Bytes` names. What it
// writes elsewhere it names as it does so, by LMS_WRITES. A structure's other pointers are the
// host's.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace simcuda {

// What a compiled kernel calls. `state` is whoever launches it.
struct KernelHooks {
  void* state;
  void* (*view)(const void* pointer);
  // Whether the kernel, which is about to be enqueued, may touch the bytes.
  int (*touch)(void* state, const void* pointer, size_t size, int write);
  // The kernel, which runs, writes the bytes.
  void (*wrote)(void* state, const void* pointer, size_t size);
};

bool for_the_cpu(const std::string& source);

// What cuModuleLoadData() takes, or "" and the compiler's complaint.
std::string compile_for_the_cpu(const std::string& source, std::string* log);

// The library in an image. Owns it.
class CpuModule {
 public:
  static std::unique_ptr<CpuModule> load(const void* image); // null: it is none
  CpuModule(const CpuModule&) = delete;
  CpuModule& operator=(const CpuModule&) = delete;
  ~CpuModule();

  struct Kernel {
    const char* name;
    // The work of a launch with these parameters; null when it touches what it may not.
    void* (*prepare)(const KernelHooks*, void** parameters);
    // Does the work and forgets it.
    void (*run)(const KernelHooks*, void* work, unsigned blocks);
  };
  bool find(const std::string& name, Kernel* kernel) const;

 private:
  CpuModule(int file, void* library) : file_(file), library_(library) {}

  int file_; // its number makes the library's name
  void* library_;
};

} // namespace simcuda

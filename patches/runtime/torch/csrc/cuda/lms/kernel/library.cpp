#include <torch/csrc/cuda/lms/kernel/library.h>

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <cstring>

namespace torch::cuda::lms {

namespace {

// PyTorch's own library (the second name is that of 1.1) provides the NVRTC and the driver that
// PyTorch uses. The others are used if it is missing or cannot be loaded.
constexpr std::array<const char*, 6> kNames = {
    "libcaffe2_nvrtc.so",
    "libthnvrtc.so",
    "libcuda.so.1",
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2"};

// The libraries are never closed: the driver does not support it, and torch's libraries keep them
// open anyway.
class Search {
 public:
  // All functions of NVRTC are taken from the library that has the first one, and so are those of
  // the driver. An older library may lack functions that another one has, but objects of one
  // library cannot be passed to another one.
  void* find(const char* function) {
    size_t& home = std::strncmp(function, "nvrtc", 5) == 0 ? nvrtc_ : driver_;
    if (home < kNames.size()) {
      return dlsym(handles_[home], function);
    }
    for (size_t i = 0; i < kNames.size(); ++i) {
      if (void* const address = opened(i) ? dlsym(handles_[i], function) : nullptr) {
        home = i;
        return address;
      }
    }
    return nullptr;
  }

  template <typename Function>
  void optional(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(find(name));
  }

  template <typename Function>
  void required(Function*& function, const char* name) {
    optional(function, name);
    TORCH_CHECK(
        function != nullptr,
        "LMS: no library on this system provides ",
        name,
        "()",
        error_.empty() ? "" : ": ",
        error_);
  }

 private:
  bool opened(size_t i) {
    if (!tried_[i]) {
      tried_[i] = true;
      handles_[i] = dlopen(kNames[i], RTLD_NOW | RTLD_LOCAL);
      const char* const error = handles_[i] == nullptr ? dlerror() : nullptr;
      if (error != nullptr && error_.empty()) {
        error_ = error; // the error of the first library, which should be there
      }
    }
    return handles_[i] != nullptr;
  }

  size_t nvrtc_ = kNames.size(); // not found yet
  size_t driver_ = kNames.size();
  std::array<void*, kNames.size()> handles_{};
  std::array<bool, kNames.size()> tried_{};
  std::string error_;
};

} // namespace

Library::Library() {
  Search search;
#define LMS_REQUIRED(function) search.required(function, #function)
#define LMS_OPTIONAL(function) search.optional(function, #function)
  LMS_REQUIRED(nvrtcVersion);
  LMS_REQUIRED(nvrtcCreateProgram);
  LMS_REQUIRED(nvrtcDestroyProgram);
  LMS_REQUIRED(nvrtcCompileProgram);
  LMS_REQUIRED(nvrtcGetProgramLogSize);
  LMS_REQUIRED(nvrtcGetProgramLog);
  LMS_REQUIRED(nvrtcGetPTXSize);
  LMS_REQUIRED(nvrtcGetPTX);
  LMS_REQUIRED(nvrtcGetErrorString);
  LMS_OPTIONAL(nvrtcGetCUBINSize);
  LMS_OPTIONAL(nvrtcGetCUBIN);
  LMS_OPTIONAL(nvrtcGetNumSupportedArchs);
  LMS_OPTIONAL(nvrtcGetSupportedArchs);
  LMS_REQUIRED(cuModuleLoadData);
  LMS_REQUIRED(cuModuleUnload);
  LMS_REQUIRED(cuModuleGetFunction);
  LMS_REQUIRED(cuFuncSetAttribute);
  LMS_REQUIRED(cuLaunchKernel);
  LMS_REQUIRED(cuGetErrorString);
#undef LMS_REQUIRED
#undef LMS_OPTIONAL
}

void Library::check_nvrtc(Result result, const char* call) const {
  TORCH_CHECK(
      result == 0, "LMS: ", call, "() failed: ", nvrtcGetErrorString(result), " (", result, ")");
}

void Library::check_driver(Result result, const char* call) const {
  if (result == 0) {
    return;
  }
  const char* text = nullptr;
  if (cuGetErrorString(result, &text) != 0 || text == nullptr) {
    text = "unknown error";
  }
  TORCH_CHECK(false, "LMS: ", call, "() failed: ", text, " (", result, ")");
}

} // namespace torch::cuda::lms

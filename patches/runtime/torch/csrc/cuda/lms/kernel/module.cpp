#include <torch/csrc/cuda/lms/kernel/module.h>

#include <torch/csrc/cuda/lms/kernel/cache.h>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

namespace {

constexpr int kOldest = 70; // compute capability 7.0, because the kernels use its atomics
constexpr Library::Result kInvalidContext = 201; // an error code of the driver
constexpr int kMostShared = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

int capability() {
  const int device = c10::cuda::current_device();
  int major = 0;
  int minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

// What NVRTC compiles to: machine code, or PTX if the device is newer than NVRTC. The driver
// compiles PTX.
struct Target {
  bool machine_code;
  int architecture;

  std::string name() const {
    return (machine_code ? "sm_" : "compute_") + std::to_string(architecture);
  }
};

Target target(const Library& library, int capability) {
  TORCH_CHECK(
      capability >= kOldest,
      "LMS: the kernels need compute capability 7.0 or later, but this GPU has ",
      capability / 10,
      ".",
      capability % 10);
  if (library.nvrtcGetNumSupportedArchs == nullptr || library.nvrtcGetSupportedArchs == nullptr) {
    return {false, kOldest};
  }
  int count = 0;
  library.check_nvrtc(library.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<size_t>(std::max(count, 1)));
  library.check_nvrtc(library.nvrtcGetSupportedArchs(known.data()), "nvrtcGetSupportedArchs");
  int nearest = 0;
  for (const int architecture : known) {
    if (architecture <= capability) {
      nearest = std::max(nearest, architecture);
    }
  }
  TORCH_CHECK(
      nearest >= kOldest,
      "LMS: this NVRTC does not compile for compute capability ",
      capability / 10,
      ".",
      capability % 10);
  return {nearest == capability && library.nvrtcGetCUBIN != nullptr, nearest};
}

class Program {
 public:
  Program(const Library& library, const KernelSource& source) : library_(library) {
    library.check_nvrtc(
        library.nvrtcCreateProgram(&program_, source.text, source.name, 0, nullptr, nullptr),
        "nvrtcCreateProgram");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    (void)library_.nvrtcDestroyProgram(&program_);
  }

  void compile(const std::vector<std::string>& options) {
    std::vector<const char*> texts;
    for (const std::string& option : options) {
      texts.push_back(option.c_str());
    }
    const Library::Result result =
        library_.nvrtcCompileProgram(program_, static_cast<int>(texts.size()), texts.data());
    TORCH_CHECK(
        result == 0,
        "LMS: nvrtcCompileProgram() failed: ",
        library_.nvrtcGetErrorString(result),
        " (",
        result,
        ") ",
        complaint());
  }

  std::string image(bool machine_code) const {
    size_t size = 0;
    const auto measure = machine_code ? library_.nvrtcGetCUBINSize : library_.nvrtcGetPTXSize;
    const auto get = machine_code ? library_.nvrtcGetCUBIN : library_.nvrtcGetPTX;
    library_.check_nvrtc(
        measure(program_, &size), machine_code ? "nvrtcGetCUBINSize" : "nvrtcGetPTXSize");
    std::string image(size, '\0');
    library_.check_nvrtc(get(program_, &image[0]), machine_code ? "nvrtcGetCUBIN" : "nvrtcGetPTX");
    return image;
  }

 private:
  // The first line of the compiler's log, because errors are one line.
  std::string complaint() const {
    size_t size = 0;
    if (library_.nvrtcGetProgramLogSize(program_, &size) != 0 || size == 0) {
      return "";
    }
    std::string log(size, '\0');
    if (library_.nvrtcGetProgramLog(program_, &log[0]) != 0) {
      return "";
    }
    return log.substr(0, std::min(log.find('\n'), log.find('\0')));
  }

  const Library& library_;
  Library::Program program_ = nullptr;
};

// Compiled images, by what they were compiled from. Never destroyed, because the modules are not
// either.
struct Images {
  std::mutex mutex;
  std::unordered_map<std::string, std::string> by_key;

  static Images& get() {
    static auto* const instance = new Images;
    return *instance;
  }
  // Empty if it is not known.
  std::string find(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = by_key.find(key);
    return found == by_key.end() ? "" : found->second;
  }
  void put(const std::string& key, std::string image) {
    const std::lock_guard<std::mutex> lock(mutex);
    by_key[key] = std::move(image);
  }
};

} // namespace

Module::Module(const KernelSource& source) {
  // A thread that has only selected the device may not have a context yet.
  C10_CUDA_CHECK(cudaFree(nullptr));
  load(source);
}

void Module::load(const KernelSource& source) {
  const Target made_for = target(library_, capability());
  const std::vector<std::string> options{"--gpu-architecture=" + made_for.name(), "--std=c++14"};
  int major = 0;
  int minor = 0;
  library_.check_nvrtc(library_.nvrtcVersion(&major, &minor), "nvrtcVersion");
  std::string inputs = std::to_string(major) + "." + std::to_string(minor) + "\n";
  for (const std::string& option : options) {
    inputs += option + "\n";
  }
  const std::string key = "lms_" + std::string(source.name) + "_" + made_for.name() + "_" +
                          cache::digest(inputs + source.text);

  std::string image = Images::get().find(key);
  if (image.empty()) {
    image = cache::read(key);
  }
  // If the driver no longer accepts an image, it is compiled again.
  if (image.empty() || library_.cuModuleLoadData(&module_, image.data()) != 0) {
    Program program(library_, source);
    program.compile(options);
    image = program.image(made_for.machine_code);
    library_.check_driver(library_.cuModuleLoadData(&module_, image.data()), "cuModuleLoadData");
    cache::write(key, image);
  }
  Images::get().put(key, std::move(image));
}

Module::~Module() {
  // At process exit, the driver may already be unloaded. The error can be ignored then.
  if (module_ != nullptr) {
    (void)library_.cuModuleUnload(module_);
  }
}

Module::Kernel Module::kernel(const char* name) const {
  Kernel found = nullptr;
  library_.check_driver(library_.cuModuleGetFunction(&found, module_, name), "cuModuleGetFunction");
  return found;
}

void Module::share(Kernel kernel) const {
  int bytes = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(
      &bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, c10::cuda::current_device()));
  library_.check_driver(
      library_.cuFuncSetAttribute(kernel, kMostShared, bytes), "cuFuncSetAttribute");
}

void Module::start(Kernel kernel, const Shape& shape, cudaStream_t stream, void** parameters)
    const {
  const auto shared = static_cast<unsigned>(shape.shared);
  const auto attempt = [&] {
    return library_.cuLaunchKernel(
        kernel, shape.blocks, 1, 1, shape.threads, 1, 1, shared, stream, parameters, nullptr);
  };
  Library::Result result = attempt();
  if (result == kInvalidContext) {
    // Only calls of the CUDA runtime make the device's context current, not those of the driver.
    C10_CUDA_CHECK(cudaFree(nullptr));
    result = attempt();
  }
  library_.check_driver(result, "cuLaunchKernel");
}

} // namespace torch::cuda::lms

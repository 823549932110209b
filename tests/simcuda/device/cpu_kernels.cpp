#include "cpu_kernels.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <vector>

extern char** environ;

namespace simcuda {
namespace {

constexpr char kBefore[] = R"cpp(
#include <cstddef>
#include <tuple>
#include <type_traits>

  struct Hooks {
    void* state;
    void* (*view)(const void*);
    int (*touch)(void*, const void*, size_t, int);
    void (*used)(void*, const void*, size_t, int);
    void (*napped)(void*, unsigned long long);
    void (*trap)(void*);
  };
  static thread_local const Hooks* hooks;
  // Nanoseconds that the thread block has slept.
  static thread_local unsigned long long slept;

  struct Index {
    unsigned x, y, z;
  };
  static thread_local Index threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, gridDim{1, 1, 1};

  struct ulonglong2 {
    unsigned long long x, y;
  };

#define __global__
#define __device__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define LMS_THREADS 1
#define LMS_READS(pointer, size) hooks->used(hooks->state, pointer, size, 0)
#define LMS_WRITES(pointer, size) hooks->used(hooks->state, pointer, size, 1)
#define LMS_NAPS(nanoseconds) (slept += (nanoseconds))

  static inline void __syncthreads() {}
  static inline void __threadfence() {}
  static inline void __threadfence_system() {}
  static inline void __trap() {
    hooks->trap(hooks->state);
  }
  template <typename T>
  static T __ldcs(const T* from) {
    // Vectors of a chunk are not read in the order in which caches expect them.
    __builtin_prefetch(reinterpret_cast<const char*>(from) + 4096);
    return *from;
  }
  // The other threads of the warp do not exist, so they add nothing.
  template <typename T>
  static T __shfl_down_sync(unsigned, T, unsigned) {
    return 0;
  }
  template <typename T>
  static T atomicAdd(T* to, T value) {
    return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST);
  }
  template <typename T>
  static T atomicMax(T* to, T value) {
    T before = __atomic_load_n(to, __ATOMIC_SEQ_CST);
    while (before < value && !__atomic_compare_exchange_n(
                                 to, &before, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return before;
  }
  template <typename T>
  static T atomicExch(T* to, T value) {
    return __atomic_exchange_n(to, value, __ATOMIC_SEQ_CST);
  }
#line 1 "kernels"
)cpp";

constexpr char kAfter[] = R"cpp(
  template <typename T>
  static bool adopt(const Hooks&, T&, long) {
    return true;
  }
  template <typename T>
  static bool adopt(const Hooks& hooks, T*& pointer, int) {
    if (pointer == nullptr)
      return true;
    const bool allowed = hooks.touch(hooks.state, pointer, sizeof(T), !std::is_const<T>::value);
    pointer = static_cast<T*>(hooks.view(pointer));
    return allowed;
  }
  template <typename T>
  static auto adopt(const Hooks& hooks, T& range, int) -> decltype(range.data, range.size, true) {
    using Data = decltype(range.data);
    const bool writes = !std::is_const<std::remove_pointer_t<Data>>::value;
    const bool allowed = hooks.touch(hooks.state, range.data, range.size, writes);
    range.data = static_cast<Data>(hooks.view(range.data));
    return allowed;
  }

  template <typename... T>
  static std::tuple<T...> parameters_of(void (*)(T...));

  template <typename Work>
  static void* prepare(const Hooks* hooks, void** parameters) {
    int index = 0;
    bool allowed = true;
    Work work{};
    std::apply(
        [&](auto&... parameter) {
          ((parameter = *static_cast<std::decay_t<decltype(parameter)>*>(parameters[index++])),
           ...);
          ((allowed = adopt(*hooks, parameter, 0) && allowed), ...);
        },
        work);
    return allowed ? new Work(work) : nullptr;
  }

  template <typename Work, typename Kernel>
  static void run(Kernel kernel, const Hooks* by, void* prepared, unsigned blocks) {
    Work* const work = static_cast<Work*>(prepared);
    hooks = by;
    gridDim.x = blocks;
    unsigned long long longest = 0; // on a GPU, thread blocks run at the same time
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
      slept = 0;
      std::apply(kernel, *work);
      longest = slept < longest ? longest : slept;
    }
    hooks->napped(hooks->state, longest);
    delete work;
  }

#define SIMCUDA_KERNEL(kernel)                                                            \
    extern "C" void* simcuda_prepare_##kernel(const Hooks* hooks, void** parameters) {      \
      return prepare<decltype(parameters_of(kernel))>(hooks, parameters);                   \
    }                                                                                       \
    extern "C" void simcuda_run_##kernel(const Hooks* hooks, void* work, unsigned blocks) { \
      run<decltype(parameters_of(kernel))>(kernel, hooks, work, blocks);                    \
    }
)cpp";

uint64_t hash(const std::string& text) {
  uint64_t state = 0xcbf29ce484222325;
  for (const char byte : text)
    state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return state;
}

// Stored before the bytes of the library.
struct Header {
  char magic[8];
  uint64_t interface; // version of the interface to the simulated device
  uint64_t size;
};
constexpr char kMagic[8] = {'S', 'I', 'M', 'K', 'E', 'R', 'N', '1'};

Header header_of(size_t size) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.interface = hash(std::string(kBefore) + kAfter);
  header.size = size;
  return header;
}

std::string program(const std::string& source) {
  std::string text = kBefore + source + kAfter;
  const std::regex kernel(R"(__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\()");
  for (std::sregex_iterator it(source.begin(), source.end(), kernel), end; it != end; ++it)
    text += "SIMCUDA_KERNEL(" + (*it)[1].str() + ")\n";
  return text;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Runs the compiler, without libraries that a sanitizer preloads into this process. Returns its
// exit status.
int compile(const std::string& source, const std::string& library, const std::string& log) {
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "LD_PRELOAD=", 11) != 0)
      environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  const char* const chosen = std::getenv("CXX");
  const std::string shell = std::string(chosen != nullptr && *chosen ? chosen : "g++") +
                            " -std=c++17 -O2 -w -shared -fPIC '" + source + "' -o '" + library +
                            "' 2>'" + log + "'";
  const char* const command[] = {"sh", "-c", shell.c_str(), nullptr};
  pid_t child = 0;
  if (posix_spawnp(
          &child, "sh", nullptr, nullptr, const_cast<char**>(command), environment.data()) != 0)
    return -1;
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// Next to the simulated device, so that later processes can use it.
std::string kept(const std::string& text) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&kept), &info) == 0 || info.dli_fname == nullptr)
    return "";
  const std::string self = info.dli_fname;
  char name[32];
  std::snprintf(
      name, sizeof name, "kernels-%016llx.so", static_cast<unsigned long long>(hash(text)));
  return self.substr(0, self.rfind('/') + 1) + name;
}

} // namespace

bool for_the_cpu(const std::string& source) {
  return source.find("LMS_THREADS") != std::string::npos;
}

std::string compile_for_the_cpu(const std::string& source, std::string* log) {
  const std::string text = program(source);
  const std::string library = kept(text);
  std::string bytes = read(library);
  if (bytes.empty()) {
    char folder[] = "/tmp/simcuda-XXXXXX";
    if (mkdtemp(folder) == nullptr) {
      *log = "no folder to compile in";
      return "";
    }
    const std::string in = folder;
    std::ofstream(in + "/kernels.cpp") << text;
    const int status = compile(in + "/kernels.cpp", in + "/kernels.so", in + "/log");
    if (status == 0) {
      bytes = read(in + "/kernels.so");
    } else {
      *log = read(in + "/log");
      log->insert(0, "the C++ compiler failed: ");
    }
    for (const char* const name : {"/kernels.cpp", "/kernels.so", "/log"})
      unlink((in + name).c_str());
    rmdir(folder);
    if (bytes.empty())
      return "";
    const std::string beside = library + "." + std::to_string(getpid());
    std::ofstream(beside, std::ios::binary) << bytes;
    if (std::rename(beside.c_str(), library.c_str()) != 0)
      unlink(beside.c_str());
  }
  const Header header = header_of(bytes.size());
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + bytes;
}

std::unique_ptr<CpuModule> CpuModule::load(const void* image) {
  Header header;
  std::memcpy(&header, image, sizeof header.magic);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    return nullptr;
  std::memcpy(&header, image, sizeof header);
  if (header.interface != header_of(0).interface)
    return nullptr;
  const int file = memfd_create("kernels", MFD_CLOEXEC);
  const char* const bytes = static_cast<const char*>(image) + sizeof header;
  void* library = nullptr;
  if (file >= 0 && write(file, bytes, header.size) == static_cast<ssize_t>(header.size)) {
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    if (file >= 0)
      close(file);
    return nullptr;
  }
  return std::unique_ptr<CpuModule>(new CpuModule(file, library));
}

CpuModule::~CpuModule() {
  dlclose(library_);
  close(file_);
}

bool CpuModule::find(const std::string& name, Kernel* kernel) const {
  const auto prepare = dlsym(library_, ("simcuda_prepare_" + name).c_str());
  const auto run = dlsym(library_, ("simcuda_run_" + name).c_str());
  kernel->prepare = reinterpret_cast<decltype(kernel->prepare)>(prepare);
  kernel->run = reinterpret_cast<decltype(kernel->run)>(run);
  return prepare != nullptr && run != nullptr;
}

} // namespace simcuda

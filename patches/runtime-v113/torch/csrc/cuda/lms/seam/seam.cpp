#include <torch/csrc/cuda/lms/seam/seam.h>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

using namespace torch::cuda::lms::seam;

namespace {

#define LMS_ALLOCATOR "_ZN3c104cuda20CUDACachingAllocator"

// Aborts, because nothing works without these functions, and the caller may not be able to throw.
[[noreturn]] void lack(const char* name) {
  std::fprintf(
      stderr,
      "LMS: libc10_cuda.so has no %s, so it is from another build of PyTorch. Reinstall the "
      "wheel.\n",
      name);
  std::abort();
}

void* library() {
  void* const handle = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) {
    lack("handle");
  }
  return handle;
}

template <class F>
void find(F& function, void* handle, const char* name) {
  function = reinterpret_cast<F>(dlsym(handle, name));
  if (!function) {
    lack(name);
  }
}

const Native& native() {
  static const Native instance = [] {
    void* const handle = library();
    Native found{};
    find(found.get, handle, LMS_ALLOCATOR "3getEv");
    find(found.raw_alloc, handle, LMS_ALLOCATOR "9raw_allocEm");
    find(
        found.raw_alloc_with_stream,
        handle,
        LMS_ALLOCATOR "21raw_alloc_with_streamEmP11CUstream_st");
    find(
        found.record_stream,
        handle,
        LMS_ALLOCATOR "12recordStreamERKNS_7DataPtrENS0_10CUDAStreamE");
    find(found.empty_cache, handle, LMS_ALLOCATOR "10emptyCacheEv");
    find(found.set_memory_fraction, handle, LMS_ALLOCATOR "17setMemoryFractionEdi");
    find(found.capture_begins, handle, LMS_ALLOCATOR "18notifyCaptureBeginEiySt4pairIyyE");
    find(found.capture_ends, handle, LMS_ALLOCATOR "16notifyCaptureEndEiy");
    find(found.capture_destroyed, handle, LMS_ALLOCATOR "20notifyCaptureDestroyEiSt4pairIyyE");
    find(found.snapshot, handle, LMS_ALLOCATOR "8snapshotEv");
    find(found.current_stream, handle, "_ZN3c104cuda20getCurrentCUDAStreamEa");
    return found;
  }();
  return instance;
}

// The segments that were made during captures, including those before LMS was turned on. The
// allocator does not report which segments belong to graphs, but a graph's segments are made during
// its capture.
class Captures {
 public:
  void begin(c10::cuda::CaptureId_t graph, c10::cuda::MempoolId_t pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::set<int64_t> before = segments();
    keep_only(before);
    begun_[graph] = {pool, std::move(before)};
  }
  void end(c10::cuda::CaptureId_t graph) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::set<int64_t> now = segments();
    const auto found = begun_.find(graph);
    if (found != begun_.end()) {
      add(found->second, now);
      begun_.erase(found);
    }
  }
  // Also ends captures that failed.
  void destroyed(c10::cuda::MempoolId_t pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::set<int64_t> now = segments();
    for (auto next = begun_.begin(); next != begun_.end();) {
      const auto capture = next++;
      if (capture->second.pool == pool) {
        add(capture->second, now);
        begun_.erase(capture);
      }
    }
  }
  // Others may get the addresses of segments that are gone.
  void emptied() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!made_.empty()) {
      keep_only(segments());
    }
  }
  bool made(int64_t segment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return made_.count(segment) > 0;
  }

 private:
  struct Capture {
    c10::cuda::MempoolId_t pool;
    std::set<int64_t> before;
  };

  static std::set<int64_t> segments() {
    std::set<int64_t> addresses;
    for (const auto& segment : native().snapshot()) {
      addresses.insert(segment.address);
    }
    return addresses;
  }
  void keep_only(const std::set<int64_t>& now) {
    for (auto segment = made_.begin(); segment != made_.end();) {
      segment = now.count(*segment) ? std::next(segment) : made_.erase(segment);
    }
  }
  void add(const Capture& capture, const std::set<int64_t>& now) {
    for (const int64_t segment : now) {
      if (capture.before.count(segment) == 0) {
        made_.insert(segment);
      }
    }
  }

  // Held while the native allocator is asked, so that what is known is not older than the answer.
  std::mutex mutex_;
  std::map<c10::cuda::CaptureId_t, Capture> begun_;
  std::set<int64_t> made_;
};

Captures& captures() {
  static auto* const instance = new Captures;
  return *instance;
}

Seam& seam() {
  static Seam* const instance = [] {
    auto* const made = new Seam;
    made->native = native;
    made->is_graphs = [](int64_t address) { return captures().made(address); };
    return made;
  }();
  return *instance;
}

const Hooks* hooks() {
  return seam().hooks.load(std::memory_order_acquire);
}

// The functions of the runtime, or the native ones if it is not loaded yet.
const Native& next() {
  const Hooks* const ours = hooks();
  return ours ? *ours : native();
}

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// The address range of libc10_cuda's code. When libc10_cuda itself asks for the current stream, it
// does not launch a kernel, and some of its calls must not throw.
Range own_code() {
  link_map* map = nullptr;
  if (dlinfo(library(), RTLD_DI_LINKMAP, &map) != 0) {
    return {};
  }
  struct Search {
    uintptr_t base;
    Range range;
  } search{map->l_addr, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        if (info->dlpi_addr != wanted.base) {
          return 0;
        }
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type == PT_LOAD && (header.p_flags & PF_X)) {
            wanted.range.begin = info->dlpi_addr + header.p_vaddr;
            wanted.range.end = wanted.range.begin + header.p_memsz;
          }
        }
        return 1;
      },
      &search);
  return search.range;
}

bool is_own(const void* caller) {
  static const Range range = own_code();
  const auto address = reinterpret_cast<uintptr_t>(caller);
  return address >= range.begin && address < range.end;
}

} // namespace

extern "C" __attribute__((visibility("default"))) Seam* lms_seam() {
  return &seam();
}

namespace c10::cuda {

CUDAStream getCurrentCUDAStream(DeviceIndex device) {
  if (const Hooks* const ours = hooks()) {
    if (!is_own(__builtin_return_address(0))) {
      ours->launching();
    }
  }
  return native().current_stream(device);
}

namespace CUDACachingAllocator {

Allocator* get() {
  return next().get();
}

void* raw_alloc(size_t bytes) {
  return next().raw_alloc(bytes);
}

void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return next().raw_alloc_with_stream(bytes, stream);
}

void recordStream(const DataPtr& data, CUDAStream stream) {
  next().record_stream(data, stream);
}

void emptyCache() {
  next().empty_cache();
  captures().emptied();
}

void setMemoryFraction(double fraction, int device) {
  if (device >= 0 && static_cast<size_t>(device) < kDevices) {
    seam().fractions[static_cast<size_t>(device)] = fraction;
  }
  next().set_memory_fraction(fraction, device);
}

void notifyCaptureBegin(int device, CaptureId_t graph, MempoolId_t pool) {
  captures().begin(graph, pool);
  next().capture_begins(device, graph, pool);
}

void notifyCaptureEnd(int device, CaptureId_t graph) {
  next().capture_ends(device, graph);
  captures().end(graph);
}

void notifyCaptureDestroy(int device, MempoolId_t pool) {
  captures().destroyed(pool);
  next().capture_destroyed(device, pool);
}

} // namespace CUDACachingAllocator

} // namespace c10::cuda

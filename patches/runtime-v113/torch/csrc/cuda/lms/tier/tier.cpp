#include <torch/csrc/cuda/lms/tier/tier.h>

#include <torch/csrc/cuda/lms/base/operation.h>
#include <torch/csrc/cuda/lms/tier/common.h>

#include <ATen/detail/CUDAHooksInterface.h>

#include <dlfcn.h>

#include <map>

namespace torch::cuda::lms {

namespace compat {

// Looked up at run time instead of linked, because it must be the seam that PyTorch's libraries
// found.
seam::Seam* find_seam() {
  using Find = seam::Seam* (*)();
  const auto find = reinterpret_cast<Find>(dlsym(RTLD_DEFAULT, "lms_seam"));
  return find ? find() : nullptr;
}

} // namespace compat

namespace {

const Tier& tier() {
  // Never destroyed, because storages keep pointers to their allocator.
  static const auto* const instance = new Tier;
  return *instance;
}

// Set before any of the functions below can be called.
const seam::Native* native_functions = nullptr;

const seam::Native& native() {
  return *native_functions;
}

// The pools of the graphs that are being captured. The mutex must be held.
std::map<c10::cuda::CaptureId_t, compat::MempoolId>& captures() {
  static auto* const instance = new std::map<c10::cuda::CaptureId_t, compat::MempoolId>;
  return *instance;
}

c10::Allocator* get() {
  return const_cast<Tier*>(&tier());
}

void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  return pager ? pager->room.allocate_raw(bytes, stream)
               : past_pagers(bytes, [&] { return native().raw_alloc_with_stream(bytes, stream); });
}

void* raw_alloc(size_t bytes) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  return pager ? pager->room.allocate_raw(bytes, c10::cuda::getCurrentCUDAStream())
               : past_pagers(bytes, [&] { return native().raw_alloc(bytes); });
}

void record_stream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (!record_managed(data, stream)) {
    native().record_stream(data, stream);
  }
}

void empty_cache() {
  give_back_limbo();
  native().empty_cache();
  trim_host();
}

void set_memory_fraction(double fraction, int device) {
  native().set_memory_fraction(fraction, device);
  fraction_changed(static_cast<c10::DeviceIndex>(device), fraction);
}

void capture_begins(int device, c10::cuda::CaptureId_t graph, compat::MempoolId pool) {
  native().capture_begins(device, graph, pool);
  {
    const Lock lock;
    captures()[graph] = pool;
  }
  // The native allocator makes the same check.
  const auto captures_it = [graph](cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    c10::cuda::CaptureId_t id = 0;
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id));
    return status == cudaStreamCaptureStatusActive && id == graph;
  };
  pool_began(Runtime::get().pager(static_cast<c10::DeviceIndex>(device)), pool, captures_it);
}

void capture_ends(int device, c10::cuda::CaptureId_t graph) {
  native().capture_ends(device, graph);
  compat::MempoolId pool;
  {
    const Lock lock;
    const auto found = captures().find(graph);
    if (found == captures().end()) {
      return;
    }
    pool = found->second;
    captures().erase(found);
  }
  pool_ended(Runtime::get().pager(static_cast<c10::DeviceIndex>(device)), pool);
}

// If a capture failed, its allocations to the pool end here. A pool that another capture uses stays
// in use.
void capture_destroyed(int device, compat::MempoolId pool) {
  native().capture_destroyed(device, pool);
  const Lock lock;
  for (const auto& capture : captures()) {
    if (capture.second == pool) {
      return;
    }
  }
  Runtime::get().pager(static_cast<c10::DeviceIndex>(device)).pools.released(pool);
}

void launching() {
  if (!Lock::held()) {
    Operation::current().check();
  }
}

c10::cuda::CUDAStream current_stream(c10::DeviceIndex device) {
  return native().current_stream(device);
}

seam::Hooks hooks() {
  seam::Hooks made{};
  made.get = get;
  made.raw_alloc = raw_alloc;
  made.raw_alloc_with_stream = raw_alloc_with_stream;
  made.record_stream = record_stream;
  made.empty_cache = empty_cache;
  made.set_memory_fraction = set_memory_fraction;
  made.capture_begins = capture_begins;
  made.capture_ends = capture_ends;
  made.capture_destroyed = capture_destroyed;
  made.current_stream = current_stream;
  made.launching = launching;
  return made;
}

} // namespace

compat::cca::CUDAAllocator* Tier::install() {
  constexpr const char* kTooLate =
      "LMS has to be loaded before PyTorch's libraries, but they were loaded first. Let "
      "`import torch` load them, and not another library or LD_PRELOAD.";
  seam::Seam* const seam = compat::find_seam();
  TORCH_CHECK(seam, kTooLate);
  auto* const allocator = new compat::cca::CUDAAllocator(*seam);
  native_functions = &allocator->functions();
  static const seam::Hooks installed = hooks();
  seam->hooks.store(&installed, std::memory_order_release);
  // Check that the calls of libtorch_cuda go through the seam.
  if (at::detail::getCUDAHooks().getCUDADeviceAllocator() != &tier()) {
    seam->hooks.store(nullptr, std::memory_order_release);
    TORCH_CHECK(false, kTooLate);
  }
  Runtime::get().tier = get();
  Runtime::get().before = native().get();
  return allocator;
}

c10::DataPtr Tier::allocate(size_t bytes) const {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  return pager ? pager->room.allocate(bytes)
               : past_pagers(bytes, [&] { return native().get()->allocate(bytes); });
}

c10::DeleterFnPtr Tier::raw_deleter() const {
  // The memory may be managed, and then its context is not its address, which
  // Allocator::raw_allocate() would need.
  return nullptr;
}

} // namespace torch::cuda::lms

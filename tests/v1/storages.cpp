// Storages, tensors and operators of the patched c10, for the tests to use
// through ctypes. Functions that can fail return false; failure() says why.

#include <c10/core/LMS.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/lms/compat/macros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

// The simulated device: what a kernel would do.
extern "C" void* simcuda_host_view(const void* pointer);
extern "C" int simcuda_operator_begin(void* stream, int device);
extern "C" void simcuda_operator_access(void*, const void*, size_t, int write, const char* name);

namespace cca = c10::cuda::CUDACachingAllocator;

namespace {

#if __has_include(<c10/core/DispatchKey.h>) // PyTorch 1.5
const auto kCudaKey = c10::DispatchKey::CUDATensorId;
#elif __has_include(<c10/core/TensorTypeIdRegistration.h>) // before PyTorch 1.3
const auto kCudaKey = c10::CUDATensorId();
#else
const auto kCudaKey = c10::TensorTypeId::CUDATensorId;
#endif

thread_local std::string t_failure;

template <class F>
bool done(F f) {
  try {
    f();
    return true;
  } catch (const c10::Error& error) {
    t_failure = error.what_without_backtrace();
    return false;
  }
}

// What the generated code of ATen has: something with a TensorImpl.
struct Tensor {
  c10::intrusive_ptr<c10::TensorImpl> impl;

  bool defined() const {
    return static_cast<bool>(impl);
  }
  c10::TensorImpl* unsafeGetTensorImpl() const {
    return impl.get();
  }
  c10::StorageImpl& storage() const {
    return *impl->storage().unsafeGetStorageImpl();
  }
};

Tensor& tensor(void* handle) {
  return *static_cast<Tensor*>(handle);
}

// A kernel on the current stream.
void launch(void* data, size_t bytes, bool write, uint32_t seed, bool& same) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  TORCH_CHECK(simcuda_operator_begin(stream.stream(), stream.device_index()) == 0, "no launch");
  simcuda_operator_access(stream.stream(), data, bytes, write, write ? "fill" : "compare");
  auto* const words = static_cast<uint32_t*>(simcuda_host_view(data));
  TORCH_CHECK(words, "an illegal address");
  for (size_t i = 0; i < bytes / sizeof(uint32_t); ++i) {
    const uint32_t word = seed + static_cast<uint32_t>(i) * 2654435761U;
    if (write) {
      words[i] = word;
    } else {
      same = same && words[i] == word;
    }
  }
}

// It takes an address or, since 1.5, a DataPtr.
C10_UNUSED void record(
    void (*function)(void*, c10::cuda::CUDAStream),
    c10::StorageImpl& storage,
    c10::cuda::CUDAStream stream) {
  function(storage.data(), stream);
}
C10_UNUSED void record(
    void (*function)(const c10::DataPtr&, c10::cuda::CUDAStream),
    c10::StorageImpl& storage,
    c10::cuda::CUDAStream stream) {
  function(storage.data_ptr(), stream);
}

void use(Tensor& t, bool write, uint32_t seed, bool& same) {
  c10::StorageImpl& storage = t.storage();
  const c10::cuda::CUDAGuard guard(storage.device().index());
  launch(storage.data(), storage.capacity(), write, seed, same);
}

} // namespace

API const char* failure() {
  return t_failure.c_str();
}

// Whether accesses and operators are told of.
API bool listening() {
  return c10::lms::hooks.load() != nullptr;
}

API void* tensor_new(size_t bytes, int device) {
  Tensor* made = nullptr;
  const bool ok = done([&] {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        caffe2::TypeMeta::Make<uint8_t>(), static_cast<int64_t>(bytes), cca::get(), true);
    made = new Tensor{
        c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)), kCudaKey)};
  });
  return ok ? made : nullptr;
}

API void tensor_delete(void* handle) {
  delete &tensor(handle);
}

API void* storage_of(void* handle) {
  return &tensor(handle).storage();
}

// Operators, as the generated ones are: one that writes, and one that reads.
API bool fill(void* handle, uint32_t seed) {
  return done([&] {
    const c10::lms::Operator op("aten::fill_", tensor(handle));
    bool same = true;
    use(tensor(handle), true, seed, same);
  });
}

API bool check(void* handle, uint32_t seed, bool* same) {
  return done([&] {
    const c10::lms::Operator op("aten::equal");
    *same = true;
    use(tensor(handle), false, seed, *same);
  });
}

// A kernel that no operator and no access shows.
API bool fill_unseen(void* handle, uint32_t seed) {
  return done([&] {
    c10::StorageImpl& storage = tensor(handle).storage();
    bool same = true;
    launch(storage.data_ptr().get(), storage.capacity(), true, seed, same);
  });
}

// Writes what its schema does not mark.
API bool train_batch_norm(void* handle, uint32_t seed) {
  return done([&] {
    const c10::lms::Operator op("aten::native_batch_norm", Tensor{});
    bool same = true;
    use(tensor(handle), true, seed, same);
  });
}

// An operator that a test is in the middle of.
API void* operator_begin(const char* name) {
  return new c10::lms::Operator(name);
}

API void operator_end(void* op) {
  delete static_cast<c10::lms::Operator*>(op);
}

// The address, by each of the ways that PyTorch's own code goes.
API bool data(void* handle, int way, void** address) {
  return done([&] {
    c10::StorageImpl& storage = tensor(handle).storage();
    const c10::StorageImpl& constant = storage;
    void* const addresses[] = {
        way == 0 ? storage.data() : nullptr,
        way == 1 ? constant.data() : nullptr,
        way == 2 ? storage.unsafe_data<uint8_t>() : nullptr,
        way == 3 ? constant.data<uint8_t>() : nullptr};
    *address = addresses[way];
  });
}

// The address that is in the storage now, without asking for it.
API void* plain_address(void* handle) {
  return tensor(handle).storage().data_ptr().get();
}

// What THCStorage_resize does.
API bool resize(void* handle, size_t bytes) {
  return done([&] {
    const c10::lms::Operator op("aten::resize_", tensor(handle));
    c10::StorageImpl& storage = tensor(handle).storage();
    auto memory = storage.allocator()->allocate(bytes);
    C10_CUDA_CHECK(cudaMemcpyAsync(
        memory.get(),
        storage.data(),
        std::min(bytes, storage.capacity()),
        cudaMemcpyDeviceToDevice,
        c10::cuda::getCurrentCUDAStream()));
    storage.set_data_ptr(std::move(memory));
    storage.set_numel(static_cast<int64_t>(bytes));
  });
}

API bool raw_alloc(size_t bytes, void** memory) {
  return done([&] { *memory = cca::raw_alloc(bytes); });
}

API bool raw_allocate(size_t bytes, void** memory) {
  return done([&] { *memory = cca::get()->raw_allocate(bytes); });
}

#if __has_include(<c10/core/DispatchKey.h>) // PyTorch 1.5
API bool raw_alloc_with_stream(size_t bytes, int64_t stream, void** memory) {
  return done([&] {
    *memory = cca::raw_alloc_with_stream(
        bytes, c10::cuda::CUDAStream::unpack(static_cast<uint64_t>(stream)).stream());
  });
}
#endif

API void raw_delete(void* memory) {
  cca::raw_delete(memory);
}

API bool empty_cache() {
  return done([] { cca::emptyCache(); });
}

API bool record_stream(void* handle, int64_t stream) {
  return done([&] {
    record(
        &cca::recordStream,
        tensor(handle).storage(),
        c10::cuda::CUDAStream::unpack(static_cast<uint64_t>(stream)));
  });
}

API int64_t pool_stream() {
  return static_cast<int64_t>(c10::cuda::getStreamFromPool().pack());
}

API void set_stream(int64_t stream) {
  c10::cuda::setCurrentCUDAStream(c10::cuda::CUDAStream::unpack(static_cast<uint64_t>(stream)));
}

API int64_t default_stream() {
  return static_cast<int64_t>(c10::cuda::getDefaultCUDAStream().pack());
}

API bool synchronize() {
  return done([] { C10_CUDA_CHECK(cudaDeviceSynchronize()); });
}

#if __has_include(<c10/util/TypeIndex.h>) // PyTorch 1.4
API int64_t reserved_bytes() {
  return cca::getDeviceStats(0).reserved_bytes[0].current;
}

API int64_t allocated_bytes() {
  return cca::getDeviceStats(0).allocated_bytes[0].current;
}
#else
API int64_t reserved_bytes() {
  return static_cast<int64_t>(cca::currentMemoryCached(0));
}

API int64_t allocated_bytes() {
  return static_cast<int64_t>(cca::currentMemoryAllocated(0));
}
#endif

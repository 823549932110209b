#include <torch/csrc/cuda/lms/kernel/packer.h>

#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <exception>

namespace torch::cuda::lms {

namespace {

codec::Parts parts_of(size_t bytes, const HostBuffer& host) {
  codec::Parts parts{};
  host.each(codec::buffer_bytes(bytes), [&](char* part, size_t, size_t size) {
    parts.part[parts.count++] = {part, size};
  });
  return parts;
}

} // namespace

Packer::Packer(c10::DeviceIndex device) : device_(device) {}

bool Packer::available(codec::Kind kind) {
  Kernels& kernels = of(kind);
  if (!kernels.tried) {
    kernels.tried = true;
    try {
      load(kind);
    } catch (const c10::Error& error) {
      kernels.why = error.what_without_backtrace();
    } catch (const std::exception& error) {
      kernels.why = error.what();
    }
    kernels.why.resize(std::min(kernels.why.size(), kernels.why.find('\n')));
    if (!kernels.why.empty()) {
      kernels.module.reset();
    }
  }
  return kernels.module != nullptr;
}

void Packer::load(codec::Kind kind) {
  TORCH_CHECK(kind != codec::Kind::None, "LMS: data of this type is not packed");
  int same_address = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device_));
  TORCH_CHECK(
      same_address != 0, "LMS: this GPU cannot use registered host memory at its host address");
  if (!tally_) {
    tally_ = zeroed(sizeof(codec::Tally));
  }
  const std::string name = std::string("codec_") + codec::name(kind);
  const std::string text = codec::source(kind);
  auto module = std::make_unique<Module>(KernelSource{name.c_str(), text.c_str()});
  of(kind).pack = module->kernel(codec::kPack);
  of(kind).unpack = module->kernel(codec::kUnpack);
  of(kind).module = std::move(module);
}

bool Packer::fits(const void* data, size_t bytes, const HostBuffer& host) {
  const size_t needed = codec::buffer_bytes(bytes);
  if (bytes > codec::kMostBytes || host.size() < needed ||
      reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    return false;
  }
  size_t parts = 0;
  bool whole = true;
  host.each(needed, [&](char* part, size_t offset, size_t size) {
    ++parts;
    const bool last = offset + size == needed;
    whole = whole && reinterpret_cast<uintptr_t>(part) % codec::kLine == 0 &&
            (last || size % codec::kAlign == 0);
  });
  return whole && parts <= codec::kParts;
}

const Packer::Kernels&
Packer::required(codec::Kind kind, const void* data, size_t bytes, const HostBuffer& host) {
  TORCH_CHECK(
      available(kind), "LMS: ", codec::name(kind), " cannot be packed on this GPU: ", why(kind));
  TORCH_CHECK(fits(data, bytes, host), "LMS: the buffer cannot hold the packed block");
  return of(kind);
}

void Packer::pack(
    codec::Kind kind,
    const void* data,
    size_t bytes,
    const HostBuffer& buffer,
    unsigned blocks,
    cudaStream_t stream) {
  const Kernels& kernels = required(kind, data, bytes, buffer);
  if (bytes == 0) {
    return;
  }
  kernels.module->launch(
      kernels.pack,
      codec::thread_blocks(bytes, blocks),
      codec::kThreads,
      stream,
      codec::Bytes{static_cast<const char*>(data), bytes},
      parts_of(bytes, buffer),
      static_cast<codec::Tally*>(tally_.get()));
}

void Packer::unpack(
    codec::Kind kind,
    void* data,
    size_t bytes,
    const HostBuffer& buffer,
    unsigned blocks,
    cudaStream_t stream) {
  const Kernels& kernels = required(kind, data, bytes, buffer);
  if (bytes == 0) {
    return;
  }
  kernels.module->launch(
      kernels.unpack,
      codec::thread_blocks(bytes, blocks),
      codec::kThreads,
      stream,
      codec::Target{static_cast<char*>(data), bytes},
      parts_of(bytes, buffer));
}

codec::Summary Packer::summary(const HostBuffer& buffer) {
  return *reinterpret_cast<const codec::Summary*>(buffer.parts().front().data);
}

} // namespace torch::cuda::lms

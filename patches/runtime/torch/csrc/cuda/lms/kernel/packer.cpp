#include <torch/csrc/cuda/lms/kernel/packer.h>

#include <torch/csrc/cuda/lms/kernel/error.h>
#include <torch/csrc/cuda/lms/stream/own_stream.h>

#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <cstring>

namespace torch::cuda::lms {

namespace {

// Nothing is packed into a part for which there is no room.
codec::Parts parts_of(const HostBuffer& host, size_t needed) {
  codec::Parts parts{};
  host.each(needed, [&](char* part, size_t, size_t size) {
    if (parts.count < codec::kParts) {
      parts.part[parts.count++] = {part, size};
    }
  });
  return parts;
}

// Whether a buffer, as far as it is needed, has parts that can be passed to a kernel.
bool suits(const void* data, size_t bytes, const HostBuffer& host, size_t needed) {
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

codec::Summary& summary_of(const HostBuffer& buffer) {
  return *reinterpret_cast<codec::Summary*>(buffer.parts().front().data);
}

codec::Bytes source(const Packer::Transfer& block) {
  return {static_cast<const char*>(block.data), block.bytes};
}

codec::Target target(const Packer::Transfer& block) {
  return {static_cast<char*>(block.data), block.bytes};
}

Module::Shape shape(size_t bytes, codec::Grid most) {
  const codec::Grid grid = codec::grid(bytes, most);
  return {grid.blocks, grid.threads, grid.block_shared()};
}

// Forgets the pieces of a block that did not get all of them.
void clear(const codec::Hash& hash, cudaStream_t stream) {
  if (hash.slot != nullptr) {
    char* const slot = reinterpret_cast<char*>(hash.slot);
    (void)cudaMemsetAsync(slot + codec::kSumsBegin, 0, codec::kSumsBytes, stream);
  }
}

// Words of many shapes: zeros, all bits, few exponents, small numbers.
void fill(uint64_t* data, size_t words) {
  constexpr uint64_t kMasks[] = {
      0,
      ~uint64_t(0),
      0x00ff00ff00ff00ff,
      0xbfffbfffbfffbfff,
      0x80ff80ff80ff80ff,
      0x0000000000003fff,
      0x0101010101010101,
      0xbf8fffffbf8fffff};
  uint64_t random = 88172645463325252; // xorshift64
  for (size_t i = 0; i < words; ++i) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const size_t chunk = i * sizeof(uint64_t) / codec::kChunk;
    data[i] = chunk % 3 == 2 && random % 2 == 0 ? 0 : random & kMasks[chunk % 8];
  }
}

} // namespace

Packer::Packer(c10::DeviceIndex device) : device_(device) {}

bool Packer::available(codec::Kind kind) {
  if (!ready(kind)) {
    make(kind);
    made(kind);
  }
  return of(kind).module != nullptr;
}

void Packer::make(codec::Kind kind) noexcept {
  Kernels& kernels = of(kind);
  kernels.why = error_of([&] { load(kind); });
  if (!kernels.why.empty()) {
    (void)cudaGetLastError();
    kernels.module.reset();
  }
}

void Packer::load(codec::Kind kind) {
  TORCH_CHECK(kind != codec::Kind::None, "LMS: data of this type is not packed");
  int same_address = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device_));
  TORCH_CHECK(
      same_address != 0, "LMS: this GPU cannot use registered host memory at its host address");
  if (!tally_) {
    tally_ = zeroed(2 * sizeof(codec::Tally));
  }
  const std::string name = std::string("codec_") + codec::name(kind);
  const std::string text = codec::source(kind);
  auto module = std::make_unique<Module>(KernelSource{name.c_str(), text.c_str()});
  of(kind).pack = module->kernel(codec::kPack);
  of(kind).pack_piece = module->kernel(codec::kPackPiece);
  of(kind).unpack = module->kernel(codec::kUnpack);
  of(kind).find = module->kernel(codec::kFind);
  of(kind).unpack_window = module->kernel(codec::kUnpackWindow);
  for (const Module::Kernel kernel : // which use shared memory
       {of(kind).pack, of(kind).pack_piece, of(kind).unpack, of(kind).unpack_window}) {
    module->share(kernel);
  }
  of(kind).module = std::move(module);
  try_out(kind);
}

// A kernel that is wrong on this GPU, by a fault of the compiler or of the driver, must not become
// a wrong number.
void Packer::try_out(codec::Kind kind) {
  constexpr size_t kBytes = 48 * codec::kChunk + 24;
  constexpr size_t kRoom = 64 * codec::kChunk; // of a sample, of its buffer, and of the result
  static_assert(codec::buffer_bytes(kBytes) <= kRoom, "it is a part of the memory");
  if (!sample_) {
    sample_ = pinned(3 * kRoom);
  }
  char* const sample = static_cast<char*>(sample_.get());
  char* const result = sample + 2 * kRoom;
  fill(reinterpret_cast<uint64_t*>(sample), kBytes / sizeof(uint64_t));
  std::memset(result, 0xff, kBytes);
  HostBuffer buffer;
  buffer.add(sample + kRoom, kRoom);
  {
    const OwnStream stream;
    launch_pack({kind, sample, kBytes, buffer, {}}, tally(1), nullptr, 0, {2}, stream);
    unpack({kind, result, kBytes, buffer, {}}, {2}, stream);
    C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  TORCH_CHECK(
      std::memcmp(sample, result, kBytes) == 0,
      "LMS: the kernels for ",
      codec::name(kind),
      " change bits on this GPU");
}

bool Packer::fits(const void* data, size_t bytes, const HostBuffer& host) {
  return suits(data, bytes, host, codec::buffer_bytes(bytes));
}

bool Packer::fits(const void* data, size_t bytes, const HostBuffer& host, const Staging& staging) {
  return staging.takes(bytes) && suits(data, bytes, host, staging.buffer_bytes(bytes));
}

bool Packer::holds(const Transfer& block) {
  const size_t least = codec::slots(block.bytes);
  const size_t most = codec::buffer_bytes(block.bytes);
  const size_t needed = std::min(std::max(block.buffer.size(), least), most);
  return suits(block.data, block.bytes, block.buffer, needed);
}

const Packer::Kernels& Packer::required(codec::Kind kind, bool suited) const {
  TORCH_CHECK(
      of(kind).module, "LMS: ", codec::name(kind), " cannot be packed on this GPU: ", why(kind));
  TORCH_CHECK(suited, "LMS: the buffer cannot hold the packed block");
  return of(kind);
}

void Packer::pack(const Transfer& block, codec::Grid most, double rate, cudaStream_t stream) {
  constexpr double kMib = 1 << 20;
  const auto pace = rate > 0 ? static_cast<uint64_t>(kMib * 1e9 / rate) : 0; // ns for 1 MiB
  (void)available(block.kind); // the first call makes the tally
  launch_pack(block, tally(0), nullptr, pace, most, stream);
}

size_t Packer::pack(
    const Transfer& block,
    double share,
    codec::Grid most,
    cudaStream_t kernels,
    Relay& copies,
    Staging& staging) {
  (void)available(block.kind);
  const size_t bytes = block.bytes;
  const size_t needed = staging.buffer_bytes(bytes);
  const Kernels& own = required(block.kind, fits(block.data, bytes, block.buffer, staging));
  if (bytes == 0) {
    return 0;
  }
  __atomic_store_n(&summary_of(block.buffer).written, 0, __ATOMIC_RELEASE);
  const auto launch = [&](const Staging::Outbound& to) {
    own.module->launch(
        own.pack_piece,
        shape(bytes, most),
        kernels,
        source(block),
        parts_of(block.buffer, needed),
        to.heads,
        to.chunks,
        to.piece,
        tally(0),
        to.vectors,
        block.hash.slot);
  };
  try {
    const size_t warps = codec::grid(bytes, most).warps();
    return staging.send(bytes, block.buffer, share, warps, kernels, copies, launch);
  } catch (const c10::Error&) {
    // They have counted the pieces that were launched.
    (void)cudaMemsetAsync(tally(0), 0, sizeof(codec::Tally), kernels);
    clear(block.hash, kernels);
    throw;
  }
}

void Packer::repack(
    const Transfer& block,
    const uint32_t* differs,
    codec::Grid most,
    cudaStream_t stream) {
  launch_pack(block, nullptr, differs, 0, most, stream);
}

void Packer::launch_pack(
    const Transfer& block,
    codec::Tally* tally,
    const uint32_t* only_if,
    uint64_t pace,
    codec::Grid most,
    cudaStream_t stream) {
  const Kernels& kernels = required(block.kind, fits(block.data, block.bytes, block.buffer));
  if (block.bytes == 0) {
    return;
  }
  if (tally != nullptr) {
    // The kernel writes it last.
    __atomic_store_n(&summary_of(block.buffer).written, 0, __ATOMIC_RELEASE);
  }
  kernels.module->launch(
      kernels.pack,
      shape(block.bytes, most),
      stream,
      source(block),
      parts_of(block.buffer, codec::buffer_bytes(block.bytes)),
      tally,
      only_if,
      pace,
      only_if == nullptr ? block.hash.slot : nullptr);
}

void Packer::unpack(const Transfer& block, codec::Grid most, cudaStream_t stream) {
  launch_unpack(block, 0, most, stream);
}

void Packer::launch_unpack(
    const Transfer& block,
    size_t beyond,
    codec::Grid most,
    cudaStream_t stream) {
  const Kernels& kernels = required(block.kind, holds(block));
  if (block.bytes == 0) {
    return;
  }
  kernels.module->launch(
      kernels.unpack,
      shape(block.bytes, most),
      stream,
      target(block),
      parts_of(block.buffer, block.buffer.size()),
      uint64_t{beyond},
      block.hash.slot,
      block.hash.corrupted);
}

void Packer::unpack(
    const Transfer& block,
    size_t pieces,
    codec::Grid most,
    Relay& copies,
    cudaStream_t kernels,
    Staging& staging) {
  const size_t bytes = block.bytes;
  const Kernels& own = required(block.kind, holds(block) && staging.takes(bytes));
  if (bytes == 0) {
    return;
  }
  const auto find = [&](codec::Bytes heads, codec::Windows windows, codec::Target ranges) {
    const auto chunks = static_cast<uint32_t>(codec::chunks(bytes));
    const codec::Grid grid = codec::grid(bytes, most);
    own.module->launch(
        own.find, {grid.blocks, grid.threads}, kernels, chunks, heads, windows, ranges);
  };
  const auto launch = [&](const Staging::Inbound& from) {
    own.module->launch(
        own.unpack_window,
        shape(bytes, most),
        kernels,
        target(block),
        from.heads,
        from.window,
        from.range,
        pieces != 0 ? 0 : from.windows,
        block.hash.slot,
        block.hash.corrupted);
  };
  const size_t known = pieces != 0 ? pieces : end(block.buffer);
  try {
    staging.bring(bytes, block.buffer, known, copies, kernels, find, launch);
    if (pieces != 0) {
      // It is not known yet whether chunks are behind them, or the block was packed again since.
      launch_unpack(block, pieces, most, kernels);
    }
  } catch (const c10::Error&) {
    clear(block.hash, kernels);
    throw;
  }
}

uint64_t Packer::written(const HostBuffer& buffer) {
  return __atomic_load_n(&summary_of(buffer).written, __ATOMIC_ACQUIRE);
}

size_t Packer::end(const HostBuffer& buffer) {
  return __atomic_load_n(&summary_of(buffer).end, __ATOMIC_ACQUIRE);
}

} // namespace torch::cuda::lms

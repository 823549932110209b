// A C interface of the runtime's Packer, for tests. A function that fails returns a negative
// number, and packer_error() returns the reason.
#include <torch/csrc/cuda/lms/codec/chunk.cpp>
#include <torch/csrc/cuda/lms/codec/fields.cpp>
#include <torch/csrc/cuda/lms/codec/floats.cpp>
#include <torch/csrc/cuda/lms/codec/format.cpp>
#include <torch/csrc/cuda/lms/codec/kernels.cpp>
#include <torch/csrc/cuda/lms/codec/kind.cpp>
#include <torch/csrc/cuda/lms/codec/pace.cpp>
#include <torch/csrc/cuda/lms/codec/warp.cpp>
#include <torch/csrc/cuda/lms/kernel/cache.cpp>
#include <torch/csrc/cuda/lms/kernel/library.cpp>
#include <torch/csrc/cuda/lms/kernel/module.cpp>
#include <torch/csrc/cuda/lms/kernel/packer.cpp>
#include <torch/csrc/cuda/lms/kernel/staging.cpp>
#include <torch/csrc/cuda/lms/kernel/zeroed.cpp>

using namespace torch::cuda::lms;

namespace {

std::string failure;

template <typename Work>
int attempt(Work work) {
  try {
    work();
    return 0;
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
    return -1;
  }
}

HostBuffer buffer_of(char* const* parts, const size_t* sizes, size_t count) {
  HostBuffer host;
  for (size_t i = 0; i < count; ++i) {
    host.add(parts[i], sizes[i]);
  }
  return host;
}

} // namespace

extern "C" {

const char* packer_error() {
  return failure.c_str();
}

// Resets the state to that of a process that has not compiled anything yet.
void packer_forget_images() {
  Images::get().by_key.clear();
}

int packer_kind_of(const char* scalar_type) {
  return static_cast<int>(codec::kind_of(scalar_type));
}

size_t packer_buffer_bytes(size_t bytes) {
  return codec::buffer_bytes(bytes);
}

Packer* packer_new(int device) {
  return new Packer(static_cast<c10::DeviceIndex>(device));
}

void packer_delete(Packer* packer) {
  delete packer;
}

bool packer_available(Packer* packer, int kind) {
  return packer->available(static_cast<codec::Kind>(kind));
}

const char* packer_why(Packer* packer, int kind) {
  return packer->why(static_cast<codec::Kind>(kind)).c_str();
}

bool packer_fits(
    const void* data,
    size_t bytes,
    char* const* parts,
    const size_t* sizes,
    size_t count) {
  return Packer::fits(data, bytes, buffer_of(parts, sizes, count));
}

int packer_pack(
    Packer* packer,
    int kind,
    void* data,
    size_t bytes,
    char* const* parts,
    const size_t* sizes,
    size_t count,
    unsigned blocks,
    unsigned threads,
    cudaStream_t stream,
    double rate) {
  return attempt([&] {
    const HostBuffer host = buffer_of(parts, sizes, count);
    packer->pack(
        {static_cast<codec::Kind>(kind), data, bytes, host}, {blocks, threads}, rate, stream);
  });
}

int packer_repack(
    Packer* packer,
    int kind,
    void* data,
    size_t bytes,
    char* const* parts,
    const size_t* sizes,
    size_t count,
    const uint32_t* differs,
    unsigned blocks,
    unsigned threads,
    cudaStream_t stream) {
  return attempt([&] {
    const HostBuffer host = buffer_of(parts, sizes, count);
    packer->repack(
        {static_cast<codec::Kind>(kind), data, bytes, host}, differs, {blocks, threads}, stream);
  });
}

int packer_unpack(
    Packer* packer,
    int kind,
    void* data,
    size_t bytes,
    char* const* parts,
    const size_t* sizes,
    size_t count,
    unsigned blocks,
    unsigned threads,
    cudaStream_t stream) {
  return attempt([&] {
    const HostBuffer host = buffer_of(parts, sizes, count);
    packer->unpack({static_cast<codec::Kind>(kind), data, bytes, host}, {blocks, threads}, stream);
  });
}

// Staging with streams, for one direction.
struct Direction {
  Staging staging;
  Relay copies{OwnStream::highest()};
  OwnStream kernels{OwnStream::highest()};
  Event event;

  // The stream that was given waits for the direction's other streams.
  void follows(cudaStream_t stream, cudaStream_t last) {
    event.record(last);
    event.block(stream);
  }
};

Direction* packer_direction_new() {
  Direction* direction = nullptr;
  attempt([&] { direction = new Direction; });
  return direction;
}

void packer_direction_delete(Direction* direction) {
  (void)cudaStreamSynchronize(direction->copies.stream());
  (void)cudaStreamSynchronize(direction->kernels);
  delete direction;
}

bool packer_takes(const Direction* direction, size_t bytes) {
  return direction->staging.takes(bytes);
}

size_t packer_staged_bytes(const Direction* direction, size_t bytes) {
  return direction->staging.buffer_bytes(bytes);
}

int packer_pack_staged(
    Packer* packer,
    int kind,
    void* data,
    size_t bytes,
    char* const* parts,
    const size_t* sizes,
    size_t count,
    unsigned blocks,
    unsigned threads,
    cudaStream_t stream,
    Direction* direction,
    double share,
    size_t* pieces) {
  return attempt([&] {
    const HostBuffer host = buffer_of(parts, sizes, count);
    direction->follows(direction->kernels, stream);
    *pieces = packer->pack(
        {static_cast<codec::Kind>(kind), data, bytes, host},
        share,
        {blocks, threads},
        direction->kernels,
        direction->copies,
        direction->staging);
    direction->follows(stream, direction->copies.stream());
  });
}

int packer_unpack_staged(
    Packer* packer,
    int kind,
    void* data,
    size_t bytes,
    char* const* parts,
    const size_t* sizes,
    size_t count,
    unsigned blocks,
    unsigned threads,
    cudaStream_t stream,
    Direction* direction,
    size_t pieces) {
  return attempt([&] {
    const HostBuffer host = buffer_of(parts, sizes, count);
    direction->follows(direction->copies.stream(), stream);
    packer->unpack(
        {static_cast<codec::Kind>(kind), data, bytes, host},
        pieces,
        {blocks, threads},
        direction->copies,
        direction->kernels,
        direction->staging);
    direction->follows(stream, direction->kernels);
  });
}

uint64_t packer_written(char* part) {
  HostBuffer host;
  host.add(part, sizeof(codec::Summary));
  return Packer::written(host);
}

size_t packer_end(char* part) {
  HostBuffer host;
  host.add(part, sizeof(codec::Summary));
  return Packer::end(host);
}

} // extern "C"

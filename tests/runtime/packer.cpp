// A C interface of the runtime's Packer, for tests. A function that fails returns a negative
// number, and packer_error() returns the reason.
#include <torch/csrc/cuda/lms/codec/chunk.cpp>
#include <torch/csrc/cuda/lms/codec/fields.cpp>
#include <torch/csrc/cuda/lms/codec/floats.cpp>
#include <torch/csrc/cuda/lms/codec/format.cpp>
#include <torch/csrc/cuda/lms/codec/hash.cpp>
#include <torch/csrc/cuda/lms/codec/kernels.cpp>
#include <torch/csrc/cuda/lms/codec/kind.cpp>
#include <torch/csrc/cuda/lms/codec/pace.cpp>
#include <torch/csrc/cuda/lms/codec/warp.cpp>
#include <torch/csrc/cuda/lms/kernel/cache.cpp>
#include <torch/csrc/cuda/lms/kernel/checker.cpp>
#include <torch/csrc/cuda/lms/kernel/checksum.cpp>
#include <torch/csrc/cuda/lms/kernel/library.cpp>
#include <torch/csrc/cuda/lms/kernel/module.cpp>
#include <torch/csrc/cuda/lms/kernel/packer.cpp>
#include <torch/csrc/cuda/lms/kernel/staging.cpp>
#include <torch/csrc/cuda/lms/kernel/zeroed.cpp>

#include <map>

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

// A packer, and the hashes of what is in each buffer.
struct Subject {
  explicit Subject(int device)
      : packer(static_cast<c10::DeviceIndex>(device)),
        checker(static_cast<c10::DeviceIndex>(device)) {}

  Checker::Slot slot(const char* buffer) {
    const auto known = slots.find(buffer);
    return known != slots.end() ? known->second : slots[buffer] = checker.take();
  }

  Packer::Transfer transfer(int kind, void* data, size_t bytes, const HostBuffer& host) {
    const bool hashed = hashes && !host.parts().empty();
    return {
        static_cast<codec::Kind>(kind),
        data,
        bytes,
        host,
        hashed ? checker.of(slot(host.parts().front().data)) : codec::Hash{}};
  }

  Packer packer;
  Checker checker;
  bool hashes = false;
  std::map<const char*, Checker::Slot> slots; // by the address of the buffer
};

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

Subject* packer_new(int device) {
  return new Subject(device);
}

void packer_delete(Subject* subject) {
  delete subject;
}

// From now on, what is packed is hashed, and compared when it is unpacked.
bool packer_use_hashes(Subject* subject) {
  subject->hashes = subject->checker.available();
  return subject->hashes;
}

// Compares the bytes with the hash of what was packed into the buffer, which is theirs from then
// on.
int packer_check(
    Subject* subject,
    const char* part,
    void* data,
    size_t bytes,
    cudaStream_t stream) {
  return attempt([&] { subject->checker.check(subject->slot(part), data, bytes, stream); });
}

uint64_t packer_caught(Subject* subject) {
  return subject->checker.caught();
}

bool packer_corrupted(Subject* subject) {
  return subject->checker.corrupted();
}

bool packer_available(Subject* subject, int kind) {
  return subject->packer.available(static_cast<codec::Kind>(kind));
}

const char* packer_why(Subject* subject, int kind) {
  return subject->packer.why(static_cast<codec::Kind>(kind)).c_str();
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
    Subject* subject,
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
    subject->packer.pack(
        subject->transfer(kind, data, bytes, host), {blocks, threads}, rate, stream);
  });
}

int packer_repack(
    Subject* subject,
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
    subject->packer.repack(
        subject->transfer(kind, data, bytes, host), differs, {blocks, threads}, stream);
  });
}

int packer_unpack(
    Subject* subject,
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
    subject->packer.unpack(subject->transfer(kind, data, bytes, host), {blocks, threads}, stream);
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
    Subject* subject,
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
    *pieces = subject->packer.pack(
        subject->transfer(kind, data, bytes, host),
        share,
        {blocks, threads},
        direction->kernels,
        direction->copies,
        direction->staging);
    direction->follows(stream, direction->copies.stream());
  });
}

int packer_unpack_staged(
    Subject* subject,
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
    subject->packer.unpack(
        subject->transfer(kind, data, bytes, host),
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

#pragma once

#include <torch/csrc/cuda/lms/move/meter.h>
#include <torch/csrc/cuda/lms/stream/event.h>
#include <torch/csrc/cuda/lms/stream/own_stream.h>
#include <torch/csrc/cuda/lms/stream/relay.h>

#include <cstddef>

namespace torch::cuda::lms {

// The streams for the transfers of one device. Page-outs and page-ins run at the same time, each in
// their own order. The hashes of page-outs on demand are computed on another stream, while earlier
// blocks are copied and queued compute runs, so that copies wait for neither. The device must be
// current for every call.
class Transfer {
 public:
  Transfer() : Transfer(OwnStream::highest()) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // What moves the bytes. The program's copies wait for other copies only. Kernels take no turns,
  // because a kernel that has to wait for another stream starts later, when compute's kernels have
  // taken all multiprocessors: compressed iterations took 12 to 16 % longer on an H200.
  enum class Engine { Copies, Kernels };

  // The stream on which a page-out, or a page-in, begins. Kernels that pack have one of their own,
  // so that they run ahead of the copies.
  cudaStream_t out(Engine engine) const {
    return engine == Engine::Kernels ? out_.kernels : out_.relay.stream();
  }
  cudaStream_t in() const {
    return in_.relay.stream();
  }
  cudaStream_t ahead() const {
    return ahead_;
  }

  // Waits until nothing runs on any of the streams. Errors are ignored.
  void wait() const noexcept;

  // Work that follows a call of page_out() or page_in() needs a new call of out() or in().
  //
  // Each function calls copy(relay of copies, stream of kernels), which issues a transfer and
  // returns the stream on which that ends, and returns an event that is complete when the transfer
  // is. Throws what copy() throws; some of the transfer may have been issued then. `bytes` is what
  // a copy would move in the same time; 0 if that is not known.
  template <typename Copy>
  EventRef page_out(Engine engine, size_t bytes, Copy copy) {
    return transfer(out_, engine, bytes, copy);
  }
  // Calls wait(stream) before, which makes the stream that writes the block's memory wait until it
  // may. What is copied to other memory first does not wait for that.
  template <typename Wait, typename Copy>
  EventRef page_in(Engine engine, size_t bytes, Wait wait, Copy copy) {
    if (engine == Engine::Copies) {
      wait(in_.relay.stream());
      return transfer(in_, engine, bytes, copy);
    }
    return transfer(in_, engine, bytes, [&](Relay& copies, cudaStream_t kernels) {
      wait(kernels);
      in_.packed.waited(kernels);
      return copy(copies, kernels);
    });
  }

  // How fast the two directions are, in bytes per second: with this engine if it has moved large
  // blocks, else with the faster one; 0 if not known yet.
  double out_rate(Engine engine) {
    return out_.rate(engine);
  }
  double in_rate(Engine engine) {
    return in_.rate(engine);
  }

  // That of large copies to the host; 0 as long as there was none.
  double copy_out_rate() {
    return out_.copied.rates().known();
  }

  // The pool for events of this device.
  EventPool& events() {
    return events_;
  }

 private:
  struct Direction {
    explicit Direction(int priority) : relay(priority), kernels(priority) {}

    Meter& meter(Engine engine) {
      return engine == Engine::Copies ? copied : packed;
    }
    double rate(Engine engine) {
      Meter& other = engine == Engine::Copies ? packed : copied;
      return meter(engine).rates().median_or(other.rates());
    }

    Relay relay; // of copies
    OwnStream kernels;
    Meter copied;
    Meter packed;
  };

  explicit Transfer(int priority) : out_(priority), in_(priority), ahead_(priority) {}

  template <typename Copy>
  EventRef transfer(Direction& direction, Engine engine, size_t bytes, Copy copy) {
    const cudaStream_t kernels = direction.kernels;
    if (engine == Engine::Copies) {
      direction.relay.next(bytes);
      direction.copied.begins(direction.relay.stream(), bytes);
    } else {
      direction.packed.begins(direction.relay.stream(), kernels, bytes);
    }
    const cudaStream_t last = copy(direction.relay, kernels);
    direction.meter(engine).ends(last);
    return events_.record(last);
  }

  Direction out_;
  Direction in_;
  OwnStream ahead_;
  EventPool events_;
};

} // namespace torch::cuda::lms

#pragma once

#include <torch/csrc/cuda/lms/record/recorder.h>

#include <cuda_runtime_api.h>

namespace torch::cuda::lms {

// The two recordings of one device that can be on at the same time.
struct Recorders {
  Recorder users; // what torch.cuda.lms.record() asks for
  Recorder own; // what LMS itself plans with

  bool timed() const {
    return users.timed() || own.timed();
  }
  void workspace(size_t bytes) {
    users.workspace(bytes);
    own.workspace(bytes);
  }
  // Around a wait of a stream for a transfer.
  void stalls(cudaStream_t stream) {
    users.stalls(stream);
    own.stalls(stream);
  }
  void resumes(cudaStream_t stream) {
    own.resumes(stream);
    users.resumes(stream);
  }
  // Around the search for memory for an operator.
  void prepares(cudaStream_t stream) {
    users.prepares(stream);
    own.prepares(stream);
  }
  void prepared(cudaStream_t stream) {
    own.prepared(stream);
    users.prepared(stream);
  }
};

} // namespace torch::cuda::lms

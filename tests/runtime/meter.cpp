// A C interface of the runtime's Meter, for tests.
#include <torch/csrc/cuda/lms/move/meter.cpp>

using namespace torch::cuda::lms;

extern "C" {

Meter* meter_new() {
  return new Meter;
}

void meter_delete(Meter* meter) {
  delete meter;
}

void meter_begins(Meter* meter, cudaStream_t stream, cudaStream_t second, size_t bytes) {
  meter->begins(stream, second, bytes);
}

void meter_waited(Meter* meter, cudaStream_t stream) {
  meter->waited(stream);
}

void meter_ends(Meter* meter, cudaStream_t stream) {
  meter->ends(stream);
}

double meter_rate(Meter* meter) {
  return meter->rates().median();
}

} // extern "C"

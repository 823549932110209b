// Random numbers: the CUDA generator's seed and offset choose the stream of a CPU generator, so
// that saving and restoring the CUDA generator's state repeats results, as on a GPU.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace simops {

// A CPU generator for one operator; advances the CUDA generator.
at::Generator cpu_generator(const at::Generator& cuda);

// While it lives, the default CPU generator draws what the device's default generator would.
class DefaultGeneratorGuard {
 public:
  explicit DefaultGeneratorGuard(c10::Device device);
  ~DefaultGeneratorGuard();
  DefaultGeneratorGuard(const DefaultGeneratorGuard&) = delete;
  DefaultGeneratorGuard& operator=(const DefaultGeneratorGuard&) = delete;

 private:
  at::Tensor saved_;
};

} // namespace simops

#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "release.h"

namespace simops {

at::Generator cpu_generator(const at::Generator& cuda) {
  // Philox counts in fours: the least that a CUDA kernel draws.
  constexpr uint64_t kDraws = 4;
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15;
  const uint64_t seed = cuda.current_seed();
  const uint64_t offset = offset_of(cuda);
  set_offset(cuda, offset + kDraws);
  return at::detail::createCPUGenerator(seed * kMix ^ (offset + (kMix >> 32)));
}

DefaultGeneratorGuard::DefaultGeneratorGuard(c10::Device device)
    : saved_(at::detail::getDefaultCPUGenerator().get_state()) {
  const at::Generator drawn = cpu_generator(at::globalContext().defaultGenerator(device));
  at::Generator(at::detail::getDefaultCPUGenerator()).set_state(drawn.get_state());
}

DefaultGeneratorGuard::~DefaultGeneratorGuard() {
  at::Generator(at::detail::getDefaultCPUGenerator()).set_state(saved_);
}

} // namespace simops

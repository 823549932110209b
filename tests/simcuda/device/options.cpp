#include "options.h"

#include <algorithm>
#include <cstdlib>

namespace simcuda {
namespace {

long long number(const char* name, long long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : otherwise;
}

} // namespace

Options Options::from_environment() {
  Options options;
  options.devices =
      static_cast<int>(std::clamp(number("SIMCUDA_DEVICES", 1), 0LL, 1LL * kMaxDevices));
  options.device_bytes = static_cast<size_t>(number("SIMCUDA_MIB", 64)) << 20;
  options.host_bytes = static_cast<size_t>(number("SIMCUDA_HOST_MIB", 0)) << 20;
  options.race = number("SIMCUDA_RACE", 1) != 0;
  options.poison = number("SIMCUDA_POISON", 1) != 0;
  options.bytes = number("SIMCUDA_BYTES", 1) != 0;
  options.async = number("SIMCUDA_ASYNC", 0) != 0;
  options.delay_us = static_cast<int>(number("SIMCUDA_DELAY_US", 0));
  options.timing = number("SIMCUDA_TIMING", 0) != 0;
  options.to_host = static_cast<double>(number("SIMCUDA_TO_HOST", 52000));
  options.to_device = static_cast<double>(number("SIMCUDA_TO_DEVICE", 53600));
  options.query_notready = static_cast<int>(number("SIMCUDA_QUERY_NOTREADY", 0));
  options.log = number("SIMCUDA_LOG", 0) != 0;
  return options;
}

} // namespace simcuda

#include "clockwork.h"

#include <algorithm>

#include "state.h"

namespace simcuda {

double Clockwork::issue(double seconds) {
  if (on() && this_thread().issues)
    host_ += seconds;
  return host_;
}

void Clockwork::wait(double until) {
  if (on() && this_thread().issues)
    host_ = std::max(host_, until);
}

double Clockwork::copy(int device, Way way, size_t bytes, double ready) {
  if (!on())
    return ready;
  const auto size = static_cast<double>(bytes);
  if (way == Way::Within)
    return ready + size / kWithin;
  const bool out = way == Way::ToHost;
  double& engine = engines_[device][out ? 0 : 1];
  const double rate = 1e6 * (out ? options_.to_host : options_.to_device);
  engine = std::max(engine, ready) + size / rate;
  return engine;
}

} // namespace simcuda

#include <torch/csrc/cuda/lms/room/cap.h>

#include <algorithm>

namespace torch::cuda::lms {

namespace {

constexpr size_t kMib = size_t(1) << 20;
// A lower limit cannot be enforced, because of the size of the native allocator's segments: it
// would give way all the time.
constexpr size_t kLeast = 10 * kMib;

// How many bytes the native allocator takes from the device for a request.
size_t segment(size_t request) {
  if (request <= kMib) {
    return 2 * kMib;
  }
  return request < 10 * kMib ? 20 * kMib : (request + 2 * kMib - 1) / (2 * kMib) * (2 * kMib);
}

// How many allocated bytes count as several iterations' worth.
size_t enough(size_t limit) {
  return std::max(32 * limit, 1024 * kMib);
}

} // namespace

size_t Cap::bytes() const {
  const size_t limit = settings_.limit;
  return limit >= kLeast ? std::max(limit, raised_) : SIZE_MAX;
}

double Cap::share() {
  if (share_ < 0) {
    const double fraction = native_.fraction(device_);
    if (share_ < 0) {
      share_ = in_force_ = fraction;
    }
  }
  return share_;
}

void Cap::share(double fraction) {
  share_ = in_force_ = fraction;
  enforce();
}

void Cap::total(size_t bytes) {
  share();
  total_ = bytes;
  enforce();
}

double Cap::wanted() const {
  const size_t limit = std::max(bytes(), opened_);
  const size_t most = settings_.enabled && !lifted_ && !pools_.any() ? limit : SIZE_MAX;
  return most >= total_
             ? share_
             // The half is added because the native allocator rounds the product of the two down.
             : std::min(share_, (static_cast<double>(most) + 0.5) / static_cast<double>(total_));
}

void Cap::enforce() {
  while (total_ != 0 && wanted() != in_force_) {
    const double fraction = wanted();
    native_.set_fraction(device_, fraction);
    ++changes_;
    in_force_ = fraction; // only now, because another thread may have set another one
  }
}

bool Cap::give_way(size_t reserved, size_t request) {
  const size_t needed = reserved + segment(request);
  if (needed <= bytes()) {
    return false;
  }
  // Some more, in case the native allocator sees another size of the device.
  raised_ = needed + 2 * kMib;
  allocated_ = 0;
  enforce();
  return true;
}

void Cap::need(size_t reserved, size_t bytes) {
  // As much is left for requests that are not planned as of the limit. If one of them fails, the
  // native allocator gives back what the plan needs.
  const size_t most = bytes > 0 ? reserved + segment(bytes + bytes / 64) + 2 * kMib : 0;
  needed_ = most > settings_.limit ? most : 0;
  raised_ = std::max(raised_, needed_);
  enforce();
}

size_t Cap::left(size_t reserved) const {
  size_t most = bytes();
  if (total_ != 0 && share_ >= 0) {
    most = std::min(most, static_cast<size_t>(share_ * static_cast<double>(total_)));
  }
  return most - std::min(most, reserved);
}

size_t Cap::largest(size_t reserved) const {
  return left(reserved) / (2 * kMib) * (2 * kMib);
}

bool Cap::admits(size_t reserved, size_t request) const {
  return segment(request) <= left(reserved);
}

void Cap::open(size_t reserved, size_t request) {
  opened_ = reserved + segment(request);
  enforce();
}

bool Cap::allocated(size_t bytes) {
  allocated_ += bytes;
  if (raised_ == needed_ || allocated_ < enough(settings_.limit)) {
    return false;
  }
  raised_ = needed_;
  enforce();
  return true;
}

} // namespace torch::cuda::lms

#pragma once

#include <atomic>

namespace torch::cuda::lms {

// A value that one thread sets and others read without a mutex. Who sees a value sees all that its
// setter did before. There is no order between two of them: what needs one is under the mutex.
template <class T>
class Published {
 public:
  explicit Published(T value) : value_(value) {}

  Published(const Published&) = delete;
  Published& operator=(const Published&) = delete;

  T load() const noexcept {
    return value_.load(std::memory_order_acquire);
  }

  operator T() const noexcept {
    return load();
  }

  T operator=(T value) noexcept {
    value_.store(value, std::memory_order_release);
    return value;
  }

 private:
  std::atomic<T> value_;
};

} // namespace torch::cuda::lms

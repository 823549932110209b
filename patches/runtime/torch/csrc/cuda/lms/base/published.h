#pragma once

#include <atomic>

namespace torch::cuda::lms {

// A value that one thread sets and others read without a mutex. A thread that reads a value also
// sees everything that the setter did before. Two Published values are not ordered with each other;
// what needs such an order is protected by the mutex.
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

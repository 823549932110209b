#include "stream.h"

#include <unistd.h>

#include <thread>
#include <utility>

namespace simcuda {

void Marker::complete() {
  const std::lock_guard<std::mutex> lock(mutex_);
  time_ = std::chrono::steady_clock::now();
  done_ = true;
  completed_.notify_all();
}

void Marker::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  completed_.wait(lock, [this] { return done_; });
  notready_ = 0;
}

bool Marker::query() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!done_)
    return false;
  if (notready_ > 0) {
    --notready_;
    return false;
  }
  return true;
}

std::chrono::steady_clock::time_point Marker::time() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return time_;
}

void WorkQueue::push(std::function<void()> work) {
  if (!async_) {
    work();
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!started_) {
    started_ = true;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  work_.push_back(std::move(work));
  pushed_.notify_one();
}

void WorkQueue::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    pushed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (work_.empty())
      return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    if (delay_us_ > 0)
      usleep(static_cast<useconds_t>(random_() % static_cast<unsigned>(delay_us_)));
    work();
    lock.lock();
    busy_ = false;
    if (work_.empty())
      became_idle_.notify_all();
  }
}

void WorkQueue::wait_until_idle() {
  std::unique_lock<std::mutex> lock(mutex_);
  became_idle_.wait(lock, [this] { return work_.empty() && !busy_; });
}

bool WorkQueue::idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return work_.empty() && !busy_;
}

void WorkQueue::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  pushed_.notify_all();
}

} // namespace simcuda

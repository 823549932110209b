// Allocator, guard and swap of the LMS library in one process, from C++ alone: for a torch whose
// Python cannot be run, or has no CUDA. On the simulated device, with its race checker.
//
// Prints a line per test; the exit status is the number of those that failed.

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/lms/api/lms.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern "C" {
long simops_install();
long simcuda_race_count();
const char* simcuda_race_report(long index);
void simcuda_clear_races();
size_t simcuda_used(int device);
}

namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kFloats = kMiB / static_cast<int64_t>(sizeof(float)); // in a MiB
constexpr int64_t kCapacity = 64; // MiB

void require(bool condition, const std::string& what) {
  if (!condition)
    throw std::runtime_error(what);
}

void succeed(int code) {
  require(code == 0, lms_last_error());
}

int64_t stat(const std::string& name) {
  std::vector<int64_t> values(lms_stat_count());
  succeed(lms_stats(0, values.data()));
  for (size_t i = 0; i < values.size(); ++i)
    if (lms_stat_name(i) == "lms." + name)
      return values[i];
  throw std::runtime_error("no statistic is called " + name);
}

at::Tensor filled(int64_t mib, float value) {
  return at::full({mib * kFloats}, value, at::TensorOptions().device(at::kCUDA));
}

bool holds(const at::Tensor& tensor, float value) {
  const at::Tensor host = tensor.cpu();
  return at::equal(host, at::full_like(host, value));
}

void* storage(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

void evict() {
  succeed(lms_reclaim_inactive(nullptr));
}

// 8 tensors that fill the device one and a half times.
std::vector<at::Tensor> too_much() {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 8; ++i)
    tensors.push_back(filled(12, static_cast<float>(i)));
  return tensors;
}

void without_lms_memory_runs_out() {
  succeed(lms_set_enabled(0));
  bool failed = false;
  try {
    too_much();
  } catch (const c10::OutOfMemoryError&) {
    failed = true;
  }
  require(failed, "96 MiB fit on a device of 64");
}

void with_lms_it_does_not() {
  const int64_t before = stat("page_out_count");
  const std::vector<at::Tensor> tensors = too_much();
  require(stat("page_out_count") > before, "nothing was paged out");
  require(simcuda_used(0) <= kCapacity * kMiB, "more is in use than there is");
  for (size_t i = 0; i < tensors.size(); ++i)
    require(holds(tensors[i], static_cast<float>(i)), "bytes were lost");
}

void an_operator_brings_its_inputs() {
  const at::Tensor a = filled(4, 2);
  const at::Tensor b = filled(4, 3);
  evict();
  require(lms_is_resident(storage(a)) == 0, "it was not paged out");
  require(lms_is_resident(storage(b)) == 0, "it was not paged out");
  const int64_t before = stat("page_in_count");
  const at::Tensor sum = a + b;
  require(stat("page_in_count") == before + 2, "two inputs need two page-ins");
  require(lms_is_resident(storage(a)) == 1, "an input is not on the device");
  require(holds(sum, 5), "the sum is wrong");
}

void a_list_of_tensors_is_seen() {
  const at::Tensor a = filled(2, 1);
  const at::Tensor b = filled(2, 7);
  evict();
  const at::Tensor both = at::cat({a, b});
  require(holds(both.slice(0, 0, a.numel()), 1), "the first part is wrong");
  require(holds(both.slice(0, a.numel()), 7), "the second part is wrong");
}

void an_access_that_nothing_announces_throws() {
  const at::Tensor a = filled(2, 1);
  evict();
  std::string message;
  try {
    a.data_ptr();
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  }
  require(message.find("LMS") != std::string::npos, "paged out, it had an address: " + message);
  require(holds(a, 1), "the bytes are wrong afterwards");
}

void what_was_only_read_moves_once() {
  const at::Tensor a = filled(2, 4);
  evict();
  const at::Tensor read = a + 1;
  const int64_t moved = stat("page_out_bytes");
  const int64_t clean = stat("clean_count");
  succeed(lms_hold(storage(read)));
  evict();
  require(stat("page_out_bytes") == moved, "bytes moved that the host had");
  require(stat("clean_count") == clean + 1, "a clean page-out was not counted");
  succeed(lms_release(storage(read)));
  require(holds(a, 4), "the host's copy was not true");
}

void a_write_makes_the_hosts_copy_stale() {
  at::Tensor a = filled(2, 4);
  evict();
  a.add_(1);
  evict();
  require(holds(a, 5), "the write was lost");
}

void a_view_is_its_base() {
  const at::Tensor a = filled(2, 4);
  at::Tensor half = a.slice(0, 0, a.numel() / 2);
  evict();
  require(lms_is_resident(storage(half)) == 0, "a view has a storage of its own");
  half.mul_(2);
  require(holds(half, 8) && holds(a.slice(0, a.numel() / 2), 4), "the base was not written");
}

void streams_wait_for_the_copies() {
  at::Tensor a = filled(4, 1);
  const c10::cuda::CUDAStream other = c10::cuda::getStreamFromPool();
  for (int i = 0; i < 8; ++i) {
    evict();
    const c10::cuda::CUDAStreamGuard guard(other);
    // The program's own part: its streams wait for each other.
    c10::cuda::getDefaultCUDAStream().synchronize();
    a.add_(1);
    other.synchronize();
  }
  require(holds(a, 9), "an addition was lost");
}

void threads_share_the_device() {
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &failures] {
      try {
        std::vector<at::Tensor> mine;
        for (int i = 0; i < 6; ++i)
          mine.push_back(filled(4, static_cast<float>(10 * t + i)));
        for (int round = 0; round < 3; ++round)
          for (at::Tensor& tensor : mine)
            tensor.add_(1);
        for (int i = 0; i < 6; ++i)
          require(holds(mine[i], static_cast<float>(10 * t + i + 3)), "bytes were lost");
      } catch (const std::exception& error) {
        std::printf("  thread %d: %s\n", t, error.what());
        failures.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  require(failures.load(std::memory_order_relaxed) == 0, "threads failed");
}

void turning_it_off_brings_everything() {
  const at::Tensor a = filled(2, 6);
  evict();
  succeed(lms_set_enabled(0));
  require(a.const_data_ptr() != nullptr, "it has no address");
  require(holds(a, 6), "the bytes are wrong");
}

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) \
  Test {           \
    #name, name    \
  }

const Test kTests[] = {
    TEST(without_lms_memory_runs_out),
    TEST(with_lms_it_does_not),
    TEST(an_operator_brings_its_inputs),
    TEST(a_list_of_tensors_is_seen),
    TEST(an_access_that_nothing_announces_throws),
    TEST(what_was_only_read_moves_once),
    TEST(a_write_makes_the_hosts_copy_stale),
    TEST(a_view_is_its_base),
    TEST(streams_wait_for_the_copies),
    TEST(threads_share_the_device),
    TEST(turning_it_off_brings_everything),
};

void run(const Test& test) {
  succeed(lms_set_enabled(1));
  succeed(lms_set_option("watch", 1));
  succeed(lms_set_size(4096));
  simcuda_clear_races();
  test.run();
  require(simcuda_race_count() == 0, simcuda_race_count() ? simcuda_race_report(0) : "");
  succeed(lms_set_enabled(0));
  c10::cuda::CUDACachingAllocator::emptyCache();
  succeed(lms_trim_host(nullptr));
  require(stat("host_bytes.current") == 0, "host memory was not given back");
}

} // namespace

int main() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::printf("%ld operators have CPU semantics\n", simops_install());
  filled(1, 0); // the allocator is set up
  int failed = 0;
  for (const Test& test : kTests) {
    try {
      run(test);
      std::printf("ok      %s\n", test.name);
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED  %s: %.300s\n", test.name, error.what());
    }
    std::fflush(stdout);
  }
  std::printf("%zu passed, %d failed\n", std::size(kTests) - failed, failed);
  return failed;
}

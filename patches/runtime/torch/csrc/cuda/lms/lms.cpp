#include <torch/csrc/cuda/lms/lms.h>

#include <torch/csrc/cuda/lms/guard.h>
#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/report.h>
#include <torch/csrc/cuda/lms/runtime.h>
#include <torch/csrc/cuda/lms/watch.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

using namespace torch::cuda::lms;

namespace {

constexpr int kAbiVersion = 3;
constexpr int kFailed = 1;
constexpr int kOutOfMemory = 2;

thread_local std::string t_error;

// No exception crosses the C ABI.
template <class F>
int checked(F f) noexcept {
  try {
    f();
    return 0;
  } catch (const c10::OutOfMemoryError& error) {
    t_error = error.what_without_backtrace();
    return kOutOfMemory;
  } catch (const c10::Error& error) {
    t_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    t_error = error.what();
  }
  return kFailed;
}

c10::StorageImpl& storage_of(void* address) {
  return *static_cast<c10::StorageImpl*>(address);
}

} // namespace

int lms_abi_version() {
  return kAbiVersion;
}

const char* lms_last_error() {
  return t_error.c_str();
}

int lms_set_enabled(int enabled) {
  return checked([&] { enabled ? Runtime::get().enable() : Runtime::get().disable(); });
}

int lms_get_enabled() {
  return Runtime::get().settings.enabled;
}

int lms_set_limit(size_t bytes) {
  return checked([&] {
    Runtime& runtime = Runtime::get();
    const Lock lock;
    runtime.settings.limit = bytes;
    if (bytes > 0) {
      Watch::begin();
    }
    runtime.each([](Pager& pager) { pager.limit_changed(); });
  });
}

size_t lms_get_limit() {
  return Runtime::get().settings.limit;
}

int lms_set_distributed(int distributed) {
  return checked([&] {
    Runtime::get().settings.distributed = distributed != 0;
    if (distributed) {
      Watch::begin();
    }
  });
}

int lms_set_size(size_t bytes) {
  return checked([&] {
    Runtime& runtime = Runtime::get();
    const Lock lock;
    if (runtime.settings.enabled && bytes < runtime.settings.size) {
      // Storages that were too small until now were used unseen.
      runtime.each([](Pager& pager) { pager.synchronize(); });
    }
    runtime.settings.size = std::max<size_t>(bytes, 1);
  });
}

size_t lms_get_size() {
  return Runtime::get().settings.size;
}

int lms_reclaim_inactive(size_t* bytes) {
  return checked([&] {
    size_t total = 0;
    const Lock lock;
    if (Runtime::get().settings.enabled) { // else nothing would bring them back
      Runtime::get().each([&](Pager& pager) { total += pager.reclaim(); });
    }
    if (bytes) {
      *bytes = total;
    }
  });
}

int lms_set_host_limit(size_t bytes) {
  Runtime::get().settings.host_limit = bytes;
  return 0;
}

size_t lms_get_host_limit() {
  return Runtime::get().settings.host_limit;
}

int lms_reserve_host(int device, size_t* bytes) {
  return checked([&] {
    const Lock lock;
    *bytes = Runtime::get().pager(static_cast<c10::DeviceIndex>(device)).reserve_host(*bytes);
  });
}

int lms_trim_host(size_t* bytes) {
  return checked([&] {
    size_t total = 0;
    const Lock lock;
    Runtime::get().each([&](Pager& pager) { total += pager.trim_host(); });
    if (bytes) {
      *bytes = total;
    }
  });
}

size_t lms_stat_count() {
  return report_size();
}

const char* lms_stat_name(size_t index) {
  return report_name(index);
}

int lms_stats(int device, int64_t* values) {
  return checked([&] {
    std::fill(values, values + report_size(), 0);
    const Lock lock;
    if (Pager* const pager = Runtime::get().find(static_cast<c10::DeviceIndex>(device))) {
      report(*pager, values);
    }
  });
}

int lms_reset_peak_stats(int device) {
  return checked([&] {
    const Lock lock;
    if (Pager* const pager = Runtime::get().find(static_cast<c10::DeviceIndex>(device))) {
      pager->reset_peak_stats();
    }
  });
}

int lms_reset_accumulated_stats(int device) {
  return checked([&] {
    const Lock lock;
    if (Pager* const pager = Runtime::get().find(static_cast<c10::DeviceIndex>(device))) {
      pager->reset_accumulated_stats();
    }
  });
}

int lms_hold(void* address) {
  return checked([&] {
    c10::StorageImpl& storage = storage_of(address);
    const Lock lock;
    if (!Runtime::get().settings.enabled || storage.device_type() != c10::DeviceType::CUDA) {
      return;
    }
    const c10::DeviceIndex device = storage.device().index();
    Pager& pager = Runtime::get().pager(device);
    if (Block* const block = pager.adopt(storage, 1)) {
      pager.hold(*block, c10::cuda::getCurrentCUDAStream(device));
    }
  });
}

int lms_release(void* address) {
  return checked([&] {
    const Lock lock;
    if (Block* const block = Pager::block_of(storage_of(address))) {
      block->pager.release(*block);
    }
  });
}

int lms_take_address(void* address) {
  return checked([&] {
    if (Runtime::get().settings.enabled) {
      Guard::address_taken(storage_of(address), /*write=*/true);
    }
  });
}

int lms_release_address(void* address) {
  return checked([&] {
    const Lock lock;
    if (Block* const block = Pager::block_of(storage_of(address))) {
      block->pager.unexport(*block);
    }
  });
}

int lms_begin_region(void* const* storages, size_t count) {
  return checked(
      [&] { Guard::begin_region(reinterpret_cast<c10::StorageImpl* const*>(storages), count); });
}

int lms_end_region() {
  return checked([] { Guard::end_region(); });
}

int lms_is_resident(void* address) {
  const Lock lock;
  const Block* const block = Pager::block_of(storage_of(address));
  return block ? !block->state.is(State::PagedOut) : -1;
}

int lms_set_option(const char* name, int value) {
  Settings& settings = Runtime::get().settings;
  if (value) {
    Watch::begin(); // all of them are about page-outs
  }
  if (std::strcmp(name, "stress") == 0) {
    settings.stress = value != 0;
  } else if (std::strcmp(name, "verify_clean") == 0) {
    settings.verify_clean = value != 0;
  } else if (std::strcmp(name, "watch") == 0) {
    // Done above.
  } else {
    t_error = std::string("LMS: there is no option ") + name;
    return kFailed;
  }
  return 0;
}

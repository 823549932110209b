#include <torch/csrc/cuda/lms/api/lms.h>

#include <torch/csrc/cuda/lms/api/report.h>
#include <torch/csrc/cuda/lms/api/switch.h>
#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/block/slices.h>
#include <torch/csrc/cuda/lms/device/runtime.h>
#include <torch/csrc/cuda/lms/guard/counter.h>
#include <torch/csrc/cuda/lms/guard/guard.h>
#include <torch/csrc/cuda/lms/guard/watch.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <string>
#include <vector>

using namespace torch::cuda::lms;

namespace {

constexpr int kAbiVersion = 13;
constexpr int kFailed = 1;
constexpr int kOutOfMemory = 2;

thread_local std::string t_error;

// Exceptions must not cross the C ABI.
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

// A reference for a call that may page the storage in. It is taken and dropped without the mutex:
// if the storage's only owner is its Python object, the second reference takes the GIL, as does
// giving it up. PyTorch 1.1 takes what a constant reference refers to for constant, too.
compat::StrongStorage hold(void* address) {
  auto* const storage = static_cast<c10::StorageImpl*>(address);
  c10::raw::intrusive_ptr::incref(storage);
  return compat::StrongStorage::reclaim(storage);
}

// The storage's memory need not stay for these reasons any more, nor if it gets a block later.
void let_go(c10::StorageImpl& storage, std::initializer_list<Reason> reasons) {
  if (Block* const block = Registry::block_of(storage)) {
    block->pager.let_go(*block, reasons);
  } else if (Pager* const pager = Runtime::get().find(storage.device().index())) {
    pager->let_go(compat::data_ptr(storage).get(), reasons);
  }
}

} // namespace

int lms_abi_version() {
  return kAbiVersion;
}

const char* lms_last_error() {
  return t_error.c_str();
}

int lms_set_enabled(int enabled) {
  return checked([&] { enabled ? turn_on() : turn_off(); });
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
      Watch::get().begin();
    }
    runtime.each([](Pager& pager) {
      pager.room.limit().forget();
      pager.follower.forget();
    });
  });
}

size_t lms_get_limit() {
  return Runtime::get().settings.limit;
}

int lms_set_size(size_t bytes) {
  return checked([&] {
    Runtime& runtime = Runtime::get();
    const Lock lock;
    if (runtime.settings.enabled && bytes < runtime.settings.size) {
      // Storages that were too small until now may have been used unseen.
      runtime.each([](Pager& pager) { pager.mover.synchronize(); });
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
    if (Runtime::get().settings.enabled) { // otherwise nothing would page them in
      Runtime::get().each([&](Pager& pager) { total += pager.room.reclaim(); });
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
    *bytes =
        Runtime::get().pager(static_cast<c10::DeviceIndex>(device)).mover.supply().reserve(*bytes);
  });
}

int lms_trim_host(size_t* bytes) {
  return checked([&] {
    size_t total = 0;
    const Lock lock;
    Runtime::get().each([&](Pager& pager) { total += pager.mover.supply().trim(); });
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
    compat::StrongStorage held = hold(address);
    c10::StorageImpl& storage = *held;
    const Lock lock;
    if (!Runtime::get().settings.enabled || storage.device_type() != c10::DeviceType::CUDA) {
      return;
    }
    const c10::DeviceIndex device = storage.device().index();
    Pager& pager = Runtime::get().pager(device);
    if (Block* const block = pager.adopt(storage, 1)) {
      pager.keep(*block, Reason::Holder, c10::cuda::getCurrentCUDAStream(device));
    } else {
      pager.hold_again(compat::data_ptr(storage).get());
    }
  });
}

int lms_release(void* address) {
  return checked([&] {
    const Lock lock;
    let_go(Slices::whole(storage_of(address)), {Reason::Holder});
  });
}

int lms_take_address(void* address, int lasting) {
  return checked([&] {
    if (Runtime::get().settings.enabled) {
      compat::StrongStorage held = hold(address);
      Guard::address_taken(*held, /*write=*/true, lasting != 0);
    } else if (lasting != 0) {
      // At once, because another thread may turn LMS on.
      const Lock lock;
      Block* const block = Registry::block_of(storage_of(address));
      if (block && block->on_device()) {
        block->known = block->memory.get();
        block->pager.mover.wrote(*block);
        if (!block->stays.has(Reason::Address)) {
          block->pager.registry.stay(*block, Reason::Address);
        }
      }
    }
  });
}

int lms_know_slice(void* slice, void* address) {
  return checked([&] {
    const Lock lock;
    Slices::learn(storage_of(slice), storage_of(address));
  });
}

int lms_release_address(void* address) {
  return checked([&] {
    const Lock lock;
    let_go(storage_of(address), {Reason::Address, Reason::Graph, Reason::Hook});
  });
}

int lms_begin_region(void* const* storages, size_t count, int* begun) {
  return checked([&] {
    std::vector<compat::StrongStorage> held;
    Guard::Inputs inputs;
    for (size_t i = 0; i < count; ++i) {
      held.push_back(hold(storages[i]));
      inputs.push_back({held.back().get(), true});
    }
    Guard::begin_region("a region", inputs);
    *begun = 1;
  });
}

int lms_end_region() {
  return checked([] { Guard::end_region(); });
}

int lms_bring(void* storage) {
  return checked([&] {
    const compat::StrongStorage held = hold(storage);
    Guard::begin_region("a region", {{held.get(), /*write=*/false}});
    Guard::end_region();
  });
}

void lms_count_region(int* begun) {
  *begun = Counter::count();
}

void lms_uncount_region() {
  Counter::uncount();
}

int lms_begin_compiled(int* outputs, int* begun) {
  return checked([&] {
    *outputs = Guard::begin_compiled();
    *begun = 1;
  });
}

int lms_end_compiled(void* const* storages, size_t count) {
  return checked([&] {
    Guard::Inputs outputs;
    for (size_t i = 0; i < count; ++i) {
      outputs.push_back({&storage_of(storages[i]), false});
    }
    Guard::end_compiled(outputs);
  });
}

int lms_begin_hook(int* begun) {
  return checked([&] {
    Guard::begin(Guard::Kind::Node, "a hook");
    *begun = 1;
    Guard::node_hooks();
  });
}

int lms_end_hook() {
  return checked([] { Guard::end(); });
}

int lms_is_resident(void* address) {
  const Lock lock;
  const Block* const block = Registry::block_of(storage_of(address));
  return block ? !block->state.is(State::PagedOut) : -1;
}

int lms_set_planning(int enabled) {
  return checked([&] {
    const Lock lock;
    Runtime::get().settings.plan = enabled != 0;
    if (!enabled) {
      Runtime::get().each([](Pager& pager) { pager.follower.forget(); });
    }
  });
}

int lms_get_planning() {
  return Runtime::get().settings.plan;
}

int lms_set_readable(int readable) {
  return checked([&] {
    const Lock lock;
    compat::readable = readable != 0;
    Runtime::get().each([](Pager& pager) { pager.update_access(); });
  });
}

int lms_set_compression(int setting) {
  return checked([&] {
    const Lock lock;
    Runtime::get().settings.compression = static_cast<Compression>(setting);
    Runtime::get().each([](Pager& pager) {
      pager.mover.supply().packing().forget();
      pager.follower.forget();
    });
  });
}

int lms_get_compression() {
  return static_cast<int>(Runtime::get().settings.compression.load());
}

int lms_record(int device, int on) {
  return checked([&] {
    const Lock lock;
    Pager& pager = Runtime::get().pager(static_cast<c10::DeviceIndex>(device));
    if (on) {
      Watch::get().begin(); // counting operators does not show what they use
      pager.start_recording();
    } else {
      pager.stop_recording();
    }
  });
}

int lms_step(uint32_t optimizer) {
  return checked([&] {
    if (Lock::forked()) {
      return; // it may still train, without the GPU
    }
    const Lock lock;
    Runtime::get().each([&](Pager& pager) { pager.step(optimizer); });
  });
}

int lms_trace(int device, const void** events, size_t* event_count, size_t* name_count) {
  return checked([&] {
    const Lock lock;
    const Pager& pager = Runtime::get().pager(static_cast<c10::DeviceIndex>(device));
    const Recorder& recorder = pager.recorders.users;
    TORCH_CHECK(!recorder.on(), "LMS: a recording of GPU ", device, " is not finished");
    *events = pager.recorded.events.data();
    *event_count = pager.recorded.events.size();
    *name_count = recorder.names().size();
  });
}

const char* lms_trace_name(int device, size_t index) {
  const Lock lock;
  const Pager& pager = Runtime::get().pager(static_cast<c10::DeviceIndex>(device));
  const auto& names = pager.recorders.users.names();
  return index < names.size() ? names[index].c_str() : "";
}

int lms_set_option(const char* name, int value) {
  Settings& settings = Runtime::get().settings;
  if (value) {
    Watch::get()
        .begin(); // nearly all options are about page-outs, for which the guard has to watch
  }
  if (std::strcmp(name, "stress") == 0) {
    settings.stress = value != 0;
  } else if (std::strcmp(name, "shuffle") == 0) {
    settings.shuffle = value != 0;
  } else if (std::strcmp(name, "late") == 0) {
    settings.late = value != 0;
  } else if (std::strcmp(name, "verify_clean") == 0) {
    settings.verify_clean = value != 0;
  } else if (std::strcmp(name, "verify") == 0) {
    settings.verify = value != 0;
  } else if (std::strcmp(name, "unchecked") == 0) {
    settings.unchecked = value != 0;
  } else if (std::strcmp(name, "keep_plans") == 0) {
    settings.keep_plans = value;
  } else if (std::strcmp(name, "watch") == 0) {
    // Done above.
  } else if (std::strcmp(name, "plans") == 0) {
    const Lock lock;
    Runtime::get().each([](Pager& pager) { pager.follower.wait(); });
  } else {
    t_error = std::string("LMS: there is no option ") + name;
    return kFailed;
  }
  return 0;
}

int lms_checks(int device, const char** why) {
  static thread_local std::string reason;
  const int known = checked([&] {
    const Lock lock;
    if (Pager* const pager = Runtime::get().find(static_cast<c10::DeviceIndex>(device))) {
      Supply& supply = pager->mover.supply();
      supply.prepare_kernels();
      reason = supply.checks() ? "" : supply.why_no_checks();
    } else {
      reason.clear();
    }
  });
  *why = reason.c_str();
  return known;
}

int lms_why_not_compressed(int device, const char** why) {
  static thread_local std::string reason;
  const int known = checked([&] {
    const Lock lock;
    Pager* const pager = Runtime::get().find(static_cast<c10::DeviceIndex>(device));
    reason = pager ? pager->mover.supply().packing().trouble() : "";
  });
  *why = reason.c_str();
  return known;
}

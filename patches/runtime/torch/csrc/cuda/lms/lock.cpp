#include <torch/csrc/cuda/lms/lock.h>

#include <torch/csrc/cuda/lms/pager.h>

namespace torch::cuda::lms {

namespace {

struct Shared {
  std::mutex mutex;
  std::vector<Block*> blocks;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
};

// Never destroyed: storages die after static destructors have run.
Shared& shared() {
  static auto* const instance = new Shared;
  return *instance;
}

thread_local bool t_held = false;

} // namespace

Lock::Lock() {
  shared().mutex.lock();
  t_held = true;
}

Lock::~Lock() {
  Shared& s = shared();
  // Freeing a block may run callbacks that free more.
  while (!s.blocks.empty()) {
    std::vector<Block*> blocks;
    blocks.swap(s.blocks);
    for (Block* block : blocks) {
      Pager::free(block);
    }
  }
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
  storages.swap(s.storages);
  t_held = false;
  s.mutex.unlock();
  // Only now: what is dropped may be a storage's last reference but that of its
  // Python object, which takes the GIL.
}

bool Lock::held() {
  return t_held;
}

void Lock::free_later(Block* block) {
  shared().blocks.push_back(block);
}

void Lock::drop_later(c10::intrusive_ptr<c10::StorageImpl> storage) {
  if (storage) {
    shared().storages.push_back(std::move(storage));
  }
}

} // namespace torch::cuda::lms

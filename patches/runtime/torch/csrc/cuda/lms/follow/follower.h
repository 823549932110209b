#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/policy.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/follow/period.h>
#include <torch/csrc/cuda/lms/follow/planning.h>
#include <torch/csrc/cuda/lms/follow/script.h>
#include <torch/csrc/cuda/lms/move/mover.h>
#include <torch/csrc/cuda/lms/record/recorder.h>
#include <torch/csrc/cuda/lms/room/planned.h>
#include <torch/csrc/cuda/lms/room/pools.h>
#include <torch/csrc/cuda/lms/room/room.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace torch::cuda::lms {

// Learns which iterations a program repeats on one device, has a plan made for each, and acts on
// the plan while the program does what the plan expects. Used under the LMS mutex.
//
// All that it does is what LMS may do at any time: to copy a block to the host, to page an idle one
// out, and to page a block in. So a program that departs from the plan is never wrong, and LMS
// pages on demand from there on.
class Follower final : public Planned {
 public:
  Follower(
      c10::DeviceIndex device,
      const Settings& settings,
      Pools& pools,
      Registry& registry,
      Policy& policy,
      Mover& mover,
      Room& room,
      Stats& stats,
      Recorder& recorder);
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Whether it wants to know what operators do.
  bool on() const {
    return recorder_.on();
  }

  // What the program does, in issue order. in_operator() is called before an operator's blocks are
  // brought, and acts on the plan; it can pause the mutex, and does not throw.
  void in_operator(uint64_t unit, const char* name, c10::cuda::CUDAStream stream);
  void used(Block& block, bool write);
  void allocated(Block& block);
  void freed(Block& block);

  // Where the plan wants memory, as Planned says it.
  std::optional<Piece> piece_of(const Block& block) const override;
  std::optional<Piece> piece_of_next(size_t bytes) override;
  void took(bool had) override {
    ++(had ? had_ : missed_);
  }

  // A step has ended, and with it perhaps an iteration. Can pause the mutex. Does not throw.
  void step();

  // Forgets all plans, for example because the limit was changed.
  void forget();

  // For tests: waits until the plan that is being made is there.
  void wait();

 private:
  bool wanted();
  void end();
  bool other_period(const std::vector<TraceEvent>& events, bool known);
  std::vector<uint32_t> links() const;
  Script* expected() const;
  void begin();
  void follow(Script& script);
  void lay_out(Script& script);
  std::optional<Piece> piece(uint32_t number, size_t bytes) const;
  void stop();
  void forget_scripts();
  void make_plans();
  void take_plan();
  bool compresses(const Script& script) const;
  void set_blocks(Script& script) const;
  void set_shares(Script& script, bool compress);
  std::optional<Planning::Blocks> blocks_of(Script& script) const;
  void log(bool followed);
  void time(bool followed);
  void on_demand();
  void check();
  void depart();
  bool change_script();
  void foresee();
  void act();
  void perform(const Action& action);
  void copy(const Action& action);
  void expect_end(Block& block, plan::Place ended);
  void fetch();
  void appeared(Block& block, bool first, uint32_t before);
  void measure();
  Block* block_of(uint32_t number) const {
    return number < slots_.size() ? slots_[number] : nullptr;
  }
  void put(uint32_t number, Block* block);

  static constexpr size_t kScripts = 8; // iterations that are known at the same time
  static constexpr size_t kLaps = 8;
  static constexpr unsigned kUnknown = 2 * kScripts;
  static constexpr unsigned kMeasured = 16; // operators between two looks at unmanaged memory

  const c10::DeviceIndex device_;
  const Settings& settings_;
  Pools& pools_;
  Registry& registry_;
  Policy& policy_;
  Mover& mover_;
  Room& room_;
  Stats& stats_;
  Recorder& recorder_;

  std::vector<std::unique_ptr<Script>> scripts_; // the one that was used last is the last
  Period period_;
  size_t steps_ = 0; // since the iteration began
  Planning planning_;
  Script* being_planned_ = nullptr;
  int64_t page_ = 0; // see Planning::Blocks; 0 until a script wants places

  // Where the places of plans are: so many bytes from an address on, which is 0 if there are none.
  size_t region_ = 0;
  size_t region_bytes_ = 0;
  // Of the iteration that runs, pieces that could be had when they were needed, and others.
  unsigned had_ = 0;
  unsigned missed_ = 0;

  Stats logged_; // when the iteration began
  struct Lap {
    Script* script;
    bool followed;
    double part; // of what PyTorch may take, that the plan uses; 0 if the iteration does not count
    bool failed; // a request did, at first
    bool joined; // blocks were moved on the device
    Trial::Way way;
    bool tried; // the way
    bool placed; // blocks had places
    std::shared_ptr<TimedEvent> begin;
    std::shared_ptr<TimedEvent> end;
  };
  std::deque<Lap> laps_; // iterations whose times are not known yet

  // Of the iteration that runs.
  std::vector<Block*> slots_; // blocks by number, also those that are expected to get it
  std::vector<uint32_t> before_; // by number: the block's number in the iteration before
  Seen seen_;
  plan::Place place_ = -1; // of the operator that runs
  uint64_t base_ = 1; // on the scale of Block::next_use, where the iteration began
  size_t read_ = 0; // events of the recording that were looked at
  size_t cursor_ = 0; // events of the script that have happened
  size_t next_action_ = 0;
  int64_t unmanaged_ = 0; // bytes at most
  Script* script_ = nullptr; // that is being followed
  bool acting_ = false;
  struct Pending {
    uint32_t number;
    plan::Place needed;
    plan::Place ended;
  };
  std::deque<Pending> pending_; // fetches for which there was no room yet
  std::vector<Action> late_; // copies of blocks that another thread used
  void forget_delayed() {
    pending_.clear();
    late_.clear();
  }

  // Of the iteration before.
  Script* last_ = nullptr; // null if there was none
  std::shared_ptr<TimedEvent> clock_; // its end; null if that was not timed
  int64_t failures_ = 0; // of requests, at first, until then
  int64_t joined_ = 0; // blocks that were moved until then
  unsigned settled_ = 0; // iterations in a row that followed a plan
  unsigned unknown_ = 0; // iterations to be timed, because one that was not known has appeared
};

} // namespace torch::cuda::lms

#include <torch/csrc/cuda/lms/follow/follower.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/base/log.h>
#include <torch/csrc/cuda/lms/record/iteration.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

namespace torch::cuda::lms {

namespace {

// Of a transfer, besides its bytes: the calls, and the events between streams.
constexpr double kOverhead = 10e-6; // seconds

// Events of an iteration. A program that takes no more steps is not recorded for ever.
constexpr size_t kMost = size_t(1) << 22;

// Sets the flag for a scope.
struct Acting {
  bool& now;
  explicit Acting(bool& flag) : now(flag) {
    now = true;
  }
  ~Acting() {
    now = false;
  }
};

} // namespace

Follower::Follower(
    c10::DeviceIndex device,
    const Settings& settings,
    Pools& pools,
    Registry& registry,
    Policy& policy,
    Mover& mover,
    Room& room,
    Stats& stats,
    Recorder& recorder)
    : device_(device),
      settings_(settings),
      pools_(pools),
      registry_(registry),
      policy_(policy),
      mover_(mover),
      room_(room),
      stats_(stats),
      recorder_(recorder) {
  room.follow(this);
}

// ---- what the program does ----

void Follower::in_operator(uint64_t unit, const char* name, c10::cuda::CUDAStream stream) {
  if (!on()) {
    return;
  }
  if (recorder_.timed() && recorder_.begins(unit) && !pools_.capturing()) {
    const c10::cuda::CUDAGuard guard(device_);
    recorder_.mark(stream.stream());
  }
  if (!recorder_.in_operator(unit, name)) {
    return;
  }
  if (recorder_.events().size() > kMost) {
    stop();
    return;
  }
  ++place_;
  check();
  if (recorder_.timed() && place_ % kMeasured == 0) {
    measure();
  }
  if (script_) {
    foresee();
    act();
  }
}

void Follower::used(Block& block, bool write) {
  if (!on()) {
    return;
  }
  const bool lately = block.followed.recording + 1 == recorder_.number();
  const uint32_t before = lately ? block.followed.value : 0;
  appeared(block, recorder_.used(block.followed, block.size, write), before);
  const uint32_t number = block.followed.value;
  seen_.blocks.resize(std::max<size_t>(seen_.blocks.size(), number + 1));
  Seen::Of& seen = seen_.blocks[number];
  seen = {block.origin, seen.stays || block.stays.lasting()};
}

void Follower::allocated(Block& block) {
  if (on()) {
    appeared(block, recorder_.allocated(block.followed, block.size), 0);
  }
}

// The block was used or allocated. `before` is its number in the iteration before; 0 if it had
// none.
void Follower::appeared(Block& block, bool first, uint32_t before) {
  const uint32_t number = block.followed.value;
  if (first) {
    before_.resize(number + 1);
    before_[number] = before;
    if (block.slot != number) {
      put(block.slot, nullptr);
      if (Block* const other = block_of(number)) {
        other->slot = 0;
      }
      put(number, &block);
    }
  }
  check();
  if (script_) {
    const plan::Place next = script_->next_use(number, place_);
    block.next_use = next == plan::Move::kNone ? 0 : base_ + static_cast<uint64_t>(next);
  }
}

void Follower::freed(Block& block) {
  if (on()) {
    recorder_.freed(block.followed);
    const bool old = block.followed.recording != recorder_.number();
    if (old && place_ >= 0 && recorder_.timed()) {
      const bool lately = block.followed.recording + 1 == recorder_.number();
      seen_.rest.push_back({place_, block.size, lately ? block.followed.value : 0});
    }
  }
  put(block.slot, nullptr); // also between two iterations, when another thread frees the block
  block.slot = 0;
}

// The block has this number from now on. Number 0 is nobody's.
void Follower::put(uint32_t number, Block* block) {
  if (number == 0) {
    return;
  }
  if (number >= slots_.size()) {
    slots_.resize(number + 1);
  }
  slots_[number] = block;
  if (block) {
    block->slot = number;
  }
}

// ---- whether it is what was expected ----

// Compares what was recorded since the last call with the script.
void Follower::check() {
  const std::vector<TraceEvent>& events = recorder_.events();
  for (; read_ < events.size(); ++read_) {
    const TraceEvent& event = events[read_];
    if (!script_ || !Script::compared(event)) {
      continue;
    }
    const std::vector<TraceEvent>& expected = script_->events();
    if (cursor_ == expected.size() || !Script::same(event, expected[cursor_])) {
      if (!change_script()) {
        depart();
        continue;
      }
    }
    ++cursor_;
  }
}

// Takes another known iteration that begins as this one did. Returns false if there is none.
bool Follower::change_script() {
  const TraceEvent& event = recorder_.events()[read_];
  for (auto other = scripts_.rbegin(); other != scripts_.rend(); ++other) {
    const std::vector<TraceEvent>& events = (*other)->events();
    if (other->get() == script_ || !(*other)->planned() || cursor_ >= events.size() ||
        !Script::same(event, events[cursor_]) ||
        !std::equal(
            events.begin(),
            events.begin() + static_cast<std::ptrdiff_t>(cursor_),
            script_->events().begin(),
            Script::same)) {
      continue;
    }
    follow(**other);
    next_action_ = 0;
    const std::vector<Action>& actions = script_->actions();
    while (next_action_ < actions.size() && actions[next_action_].place < place_) {
      ++next_action_;
    }
    forget_delayed();
    return true;
  }
  return false;
}

void Follower::depart() {
  debug_log("[lms] departed from the plan at operator %ld\n", static_cast<long>(place_));
  ++stats_.plan_departures;
  on_demand();
}

// ---- what the plan says ----

void Follower::foresee() {
  policy_.foresee(base_ + static_cast<uint64_t>(place_));
}

void Follower::act() {
  if (acting_) {
    return; // another thread acts or steps, and has paused the mutex
  }
  const Acting acting(acting_);
  try {
    const compat::RelaxedCapture relaxed; // another device may be captured
    if (room_.may_move()) {
      for (const Action& action : std::exchange(late_, {})) {
        copy(action);
      }
    }
    while (room_.may_move() && script_ && next_action_ < script_->actions().size() &&
           script_->actions()[next_action_].place <= place_) {
      const Action action = script_->actions()[next_action_++];
      perform(action);
    }
    fetch();
  } catch (const std::exception& error) {
    (void)cudaGetLastError();
    mover_.trouble(error.what());
    stop();
  }
}

void Follower::perform(const Action& action) {
  if (action.kind == Action::Kind::Fetch) {
    pending_.push_back({action.number, action.needed, action.ended});
    return;
  }
  if (action.kind == Action::Kind::Copy) {
    copy(action);
  } else if (Block* const block = block_of(action.number)) {
    room_.drop(*block);
  }
}

void Follower::copy(const Action& action) {
  Block* const block = block_of(action.number);
  if (!block) {
    return;
  }
  if (!room_.may_copy(*block)) {
    if (block->state.is(State::Resident) && block->stays.has(Reason::Operator)) {
      late_.push_back(action); // the next operator tries again
    }
    return;
  }
  block->packs = action.packs;
  if (room_.copy_ahead(*block)) {
    ++stats_.copied_ahead_count;
    expect_end(*block, action.ended);
  }
}

// Notes when the block's transfer, which has just been issued, will have ended.
void Follower::expect_end(Block& block, plan::Place ended) {
  block.busy_until = ended <= place_ ? 0 : base_ + static_cast<uint64_t>(ended);
}

// Fetches in the order of the plan, as far as there is room.
void Follower::fetch() {
  while (room_.may_move() && !pending_.empty()) {
    const Pending next = pending_.front();
    Block* const block = block_of(next.number);
    if (next.needed > place_ && block && block->state.is(State::PagedOut)) {
      if (!room_.prefetch(*block)) {
        break; // the next operator tries again
      }
      ++stats_.prefetch_count;
      if (Block* const fetched = block_of(next.number)) { // it may have been freed during a pause
        expect_end(*fetched, next.ended);
      }
    }
    if (!pending_.empty()) { // the program may have departed during a pause
      pending_.pop_front();
    }
  }
}

// Looks how much memory is in use that LMS does not manage.
void Follower::measure() {
  try {
    const auto used = static_cast<int64_t>(room_.in_use());
    int64_t managed = 0;
    registry_.each([&](Block& block) {
      managed += block.on_device() ? static_cast<int64_t>(rounded(block.size)) : 0;
    });
    unmanaged_ = std::max(unmanaged_, used - managed);
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
  }
}

// ---- iterations ----

bool Follower::wanted() {
  return settings_.enabled && settings_.plan && !settings_.stress && !settings_.late &&
         mover_.under_pressure() && !pools_.capturing();
}

void Follower::step() {
  if (acting_) {
    return; // another thread acts or steps, and has paused the mutex
  }
  const Acting acting(acting_);
  try {
    const compat::RelaxedCapture relaxed; // another device may be captured
    const c10::cuda::CUDAGuard guard(device_); // for events, which are destroyed here, too
    if (!wanted()) {
      stop();
      return;
    }
    if (on() && ++steps_ < period_.steps()) {
      return;
    }
    if (on()) {
      end();
    }
    make_plans();
    begin();
  } catch (const std::exception& error) {
    (void)cudaGetLastError();
    mover_.trouble(error.what());
    stop();
  }
}

void Follower::end() {
  const bool timed = recorder_.timed();
  if (timed) {
    recorder_.mark_end(c10::cuda::getCurrentCUDAStream(device_).stream());
  }
  Recording recording = recorder_.take();
  const bool followed = script_ && cursor_ == script_->events().size();
  stats_.planned_iterations += followed;
  const auto known = std::find_if(scripts_.begin(), scripts_.end(), [&](const auto& script) {
    return followed ? script.get() == script_ : script->is(recording.events);
  });
  log(followed);
  if (other_period(recording.events, known != scripts_.end())) {
    forget_scripts();
    return;
  }
  if (known == scripts_.end()) {
    unknown_ = kUnknown;
  } else if ((*known)->waits_for_times() && !timed) {
    unknown_ = (*known)->wait_longer(kUnknown); // it is repeated, but less often than that
  } else {
    unknown_ -= unknown_ > 0;
  }
  const Script* const before = std::exchange(last_, nullptr);
  if (known != scripts_.end()) {
    last_ = known->get();
    std::rotate(known, known + 1, scripts_.end());
    if (last_ == before && last_->links().empty()) {
      last_->set(links());
    }
    if (last_->waits_for_times() && timed) {
      last_->set(std::move(recording), std::move(seen_));
    }
    time(followed);
    return;
  }
  if (scripts_.size() == kScripts) {
    const auto oldest = std::find_if(scripts_.begin(), scripts_.end(), [&](const auto& script) {
      return script.get() != being_planned_;
    });
    laps_.erase(
        std::remove_if(
            laps_.begin(),
            laps_.end(),
            [&](const Lap& lap) { return lap.script == oldest->get(); }),
        laps_.end());
    scripts_.erase(oldest);
  }
  scripts_.push_back(std::make_unique<Script>(recording.events));
  last_ = scripts_.back().get();
  time(false);
}

// Whether iterations have another number of steps from now on.
bool Follower::other_period(const std::vector<TraceEvent>& events, bool known) {
  if (period_.steps() > 1) {
    return period_.ended(known);
  }
  uint64_t hash = 14695981039346656037u; // FNV-1a
  for (const TraceEvent& event : events) {
    if (Script::compared(event)) {
      const uint64_t value = event.kind == TraceEvent::Kind::Operator ? 0 : event.value;
      for (const uint64_t part :
           {static_cast<uint64_t>(event.kind),
            uint64_t{event.block},
            uint64_t{event.name},
            value}) {
        hash = (hash ^ part) * 1099511628211u;
      }
    }
  }
  return period_.add(hash, events.size(), !links().empty());
}

// For each number of the iteration before, the block's number in the one that has ended.
std::vector<uint32_t> Follower::links() const {
  std::vector<uint32_t> links;
  for (uint32_t number = 1; number < before_.size(); ++number) {
    if (const uint32_t before = before_[number]) {
      links.resize(std::max<size_t>(links.size(), before + 1));
      links[before] = number;
    }
  }
  return links;
}

// Takes the plan that has been made.
void Follower::take_plan() {
  Script& script = *std::exchange(being_planned_, nullptr);
  const bool placed = planning_.places();
  auto [plan, places] = planning_.take();
  debug_log(
      "[lms] plan: %s; %zu moves, %.6f s, bound %.6f s, operators %.6f s; %.2f and %.2f GB/s%s, "
      "places of %zu bytes, %ld at once\n",
      plan.problem.empty() ? "made" : plan.problem.c_str(),
      plan.moves.size(),
      plan.prediction.seconds,
      plan.bound.seconds,
      script.trace().seconds(),
      mover_.out_rate(script.asked_to_compress()) * 1e-9,
      mover_.in_rate(script.asked_to_compress()) * 1e-9,
      script.asked_to_compress() && plan.compressed ? ", compressed" : "",
      places.bytes(),
      static_cast<long>(places.load()));
  if (plan.problem.empty() && !places && placed) {
    if (!script.places() || script.places().bytes() > script.placing().most()) {
      script.placing().none();
      script.change_kind();
      return;
    }
    plan.problem = "no places"; // the plan that has some is kept
  }
  if (plan.problem.empty()) {
    script.set(std::move(plan), std::move(places));
    ++stats_.plans;
    settled_ = 0;
  } else if (plan.infeasible != plan::Move::kNone && !script.needs_more()) {
    // The limit gives way to this operator in any case.
    script.need(plan.infeasible_bytes + plan.infeasible_bytes / 64);
    return;
  }
  if (!plan.problem.empty()) {
    script.slack().no_plan();
  }
  if (script.asked_to_compress() && !script.compressed()) {
    script.trial().no_plan();
    script.doubt_places();
  }
}

// Whether the script's plans have to compress.
bool Follower::compresses(const Script& script) const {
  const Compression setting = settings_.compression;
  return setting == Compression::On ||
         (setting == Compression::Auto && script.trial().way() == Trial::Way::Plan);
}

void Follower::make_plans() {
  const c10::cuda::CUDAGuard guard(device_); // for events, which the current device is asked about
  if (planning_.done()) {
    take_plan();
  }
  if (mover_.out_rate(false) <= 0 || mover_.in_rate(false) <= 0) {
    return;
  }
  // Both pause the mutex the first time, and scripts may change.
  (void)room_.limit().part(1);
  if (page_ == 0 && std::any_of(scripts_.begin(), scripts_.end(), [](const auto& script) {
        return script->placing().wanted();
      })) {
    page_ = static_cast<int64_t>(room_.page_size());
  }
  for (const auto& script : scripts_) {
    if (script->recording() && script->recording()->ready()) {
      Recording recording = *std::exchange(script->recording(), std::nullopt);
      recording.settle();
      script->lives() = Lives(recording.events);
      script->trace() = iteration(recording.events, recorder_.names(), unmanaged_);
      set_blocks(*script);
    }
    const auto wanted = static_cast<int64_t>(room_.limit().part(script->slack().part()));
    const bool compress = compresses(*script);
    if (!planning_.busy() && script->trace().size() > 0 && !script->asked_for(wanted, compress)) {
      if (script->take_back(wanted, compress)) {
        debug_log("[lms] plan: an earlier one, %.3f of the limit\n", script->part());
        settled_ = 0;
        continue;
      }
      plan::Machine machine;
      machine.out_rate = mover_.out_rate(false);
      machine.in_rate = mover_.in_rate(false);
      machine.out_pace = mover_.out_rate(true) / machine.out_rate;
      machine.in_pace = mover_.in_rate(true) / machine.in_rate;
      machine.overhead = kOverhead;
      machine.limit = script->allowance(wanted);
      set_shares(*script, compress);
      const bool only_if_useful =
          settings_.compression == Compression::Auto && !settings_.keep_plans;
      planning_.start(script->trace(), machine, compress && only_if_useful, blocks_of(*script));
      script->ask(wanted, compress);
      being_planned_ = script.get();
    }
  }
}

// Tells the planner what stays, and what lives on from the iteration before.
void Follower::set_blocks(Script& script) const {
  const Seen& seen = script.seen();
  plan::Trace& trace = script.trace();
  for (size_t i = 0; i < trace.blocks.size() && i + 1 < seen.blocks.size(); ++i) {
    trace.blocks[i].stays = seen.blocks[i + 1].stays;
  }
  for (const Seen::Rest& rest : seen.rest) {
    plan::Block block;
    block.bytes = static_cast<int64_t>(rest.bytes);
    block.allocated = 0;
    block.freed = std::min(rest.freed, trace.size() - 1);
    block.stays = true;
    trace.blocks.push_back(block);
  }
}

// What the planner needs for places; none if they are not wanted.
std::optional<Planning::Blocks> Follower::blocks_of(Script& script) const {
  if (!script.placing().wanted()) {
    return std::nullopt;
  }
  const auto most = static_cast<int64_t>(script.placing().most());
  const auto memory = static_cast<int64_t>(room_.limit().part(1));
  Planning::Blocks blocks{script.lives(), script.links(), {}, {}, most, memory, page_};
  for (const Seen::Of& seen : script.seen().blocks) {
    blocks.stay.push_back(seen.stays);
  }
  for (const Seen::Rest& rest : script.seen().rest) {
    blocks.rest.push_back({rest.number, rest.freed});
  }
  return blocks;
}

// Tells the planner how far blocks shrink.
void Follower::set_shares(Script& script, bool compress) {
  const std::vector<Seen::Of>& seen = script.seen().blocks;
  std::vector<plan::Block>& blocks = script.trace().blocks;
  const Packing& packing = mover_.supply().packing();
  for (size_t i = 0; i < blocks.size() && i + 1 < seen.size(); ++i) {
    const auto bytes = static_cast<size_t>(blocks[i].bytes);
    const auto number = static_cast<uint32_t>(i + 1);
    blocks[i].share = compress ? packing.share(seen[number].origin, bytes, number) : 1;
  }
}

// Notes how long the iteration took that ended last.
void Follower::time(bool followed) {
  const int64_t failures = room_.failures();
  const bool failed = failures > failures_;
  failures_ = failures;
  const bool joined = stats_.compacted_count > joined_;
  joined_ = stats_.compacted_count;
  settled_ = followed ? settled_ + 1 : 0;
  // The first iteration of a plan starts with what paging on demand has left, and the first one of
  // a way with what another way has left.
  const bool again = last_->again();
  const double part = settled_ > 1 && again ? last_->part() : 0;
  const c10::cuda::CUDAGuard guard(device_);
  auto now = TimedEvent::record(c10::cuda::getCurrentCUDAStream(device_).stream());
  if (now && clock_) {
    const bool tried = settings_.compression == Compression::Auto && !last_->trial().over();
    const bool placed = static_cast<bool>(last_->places());
    laps_.push_back(
        {last_,
         followed,
         part,
         failed,
         joined,
         last_->way(),
         tried,
         placed,
         clock_,
         std::move(now)});
    clock_ = laps_.back().end;
  } else {
    clock_ = std::move(now);
  }
  while (!laps_.empty() && laps_.front().end->done()) {
    const Lap lap = std::move(laps_.front());
    laps_.pop_front();
    double seconds = 0;
    if (const int fastest = settings_.keep_plans) {
      const int away = std::abs(static_cast<int>(lap.way) + 1 - fastest);
      seconds = lap.part * (1 + away);
    } else {
      seconds = lap.end->since(*lap.begin);
      // A way that is slow may not be the one that is kept, and the first iteration of a plan
      // starts with what paging on demand has left.
      if (!lap.followed || (!lap.tried && lap.part > 0)) {
        lap.script->took(seconds, lap.followed);
      }
    }
    Placing& placing = lap.script->placing();
    const bool doubted = placing.doubted();
    if (lap.part > 0 && lap.script->linked() &&
        placing.took(lap.way, seconds, lap.placed, lap.failed || lap.joined)) {
      doubted ? lap.script->trust_places() : lap.script->change_kind();
    }
    if (lap.placed != placing.wanted()) {
      continue; // plans are of another kind now
    }
    if (!lap.tried) {
      lap.script->slack().took(lap.part, seconds, lap.failed);
    } else if (lap.part > 0) {
      lap.script->trial().took(lap.way, seconds);
      lap.script->doubt_places();
    }
  }
  if (laps_.size() > kLaps) {
    laps_.pop_front();
  }
}

void Follower::log(bool followed) {
  debug_log(
      "[lms] iteration of %ld operators, %s: %ld page-outs, %ld page-ins, %ld of them ahead, "
      "%ld requests tried again, %.3f of the limit, %u of %u pieces\n",
      static_cast<long>(place_ + 1),
      followed ? "planned" : "on demand",
      static_cast<long>(stats_.page_out_count - logged_.page_out_count),
      static_cast<long>(stats_.page_in_count - logged_.page_in_count),
      static_cast<long>(stats_.prefetch_count - logged_.prefetch_count),
      static_cast<long>(stats_.out_of_memory_retries - logged_.out_of_memory_retries),
      script_ ? script_->part() : 0.0,
      had_,
      had_ + missed_);
  logged_ = stats_;
}

// Which iteration probably follows: the same one again or, after one without a plan, the planned
// one that was the last. Null if there is none.
Script* Follower::expected() const {
  if (last_ && last_->planned()) {
    return last_;
  }
  const auto found = std::find_if(
      scripts_.rbegin(), scripts_.rend(), [](const auto& script) { return script->planned(); });
  return found == scripts_.rend() ? nullptr : found->get();
}

void Follower::begin() {
  base_ += static_cast<uint64_t>(place_ + 1);
  Script* const script = expected();
  // Which blocks the next iteration will use, by the numbers that they will have.
  const std::vector<Block*> blocks = std::exchange(slots_, {});
  for (Block* const block : blocks) {
    if (block) {
      block->slot = 0;
    }
  }
  if (script && script == last_) {
    for (uint32_t number = 1; number < blocks.size(); ++number) {
      if (blocks[number]) {
        put(script->link(number), blocks[number]);
      }
    }
  }
  before_.clear();
  seen_ = {};
  forget_delayed();
  place_ = -1;
  read_ = cursor_ = next_action_ = 0;
  steps_ = 0;
  if (script) {
    lay_out(*script);
  }
  missed_ = had_ = 0;
  const bool timed = unknown_ > 0 || !last_ || last_->waits_for_times();
  recorder_.start(timed, /*again=*/true);
  if (script) {
    follow(*script);
    foresee();
  } else {
    on_demand();
  }
}

void Follower::follow(Script& script) {
  script_ = &script;
  room_.limit().stretch(static_cast<size_t>(script.limit()));
  mover_.supply().packing().useful(script.way() != Trial::Way::Copy);
  if (script.waits()) {
    mover_.supply().packing().hurry();
  } else {
    mover_.supply().packing().take_time(mover_.copy_out_rate());
  }
}

// Makes sure that there is memory for the places of the plan. When it has just been made, nothing
// is in its place.
void Follower::lay_out(Script& script) {
  const size_t bytes = script.places().bytes();
  Placing& placing = script.placing();
  if (bytes == 0 || bytes > placing.most() || !room_.may_move()) {
    return;
  }
  const bool lost = region_ != 0 && missed_ > had_;
  if (region_ != 0 && bytes <= region_bytes_ && script.laid_out() && !lost) {
    return;
  }
  if ((lost || region_ == 0) && !placing.lost()) {
    if (placing.none()) {
      script.change_kind();
    }
    return;
  }
  region_ = room_.lay_out(bytes, script.needs_more());
  region_bytes_ = region_ != 0 ? bytes : 0;
  script.lay_out();
  if (region_ == 0) {
    placing.too_large(bytes, room_.largest_piece());
    // Places for a smaller part had memory, and what is known of the times with them counts.
    if (!script.slack().no_plan()) {
      script.begin_anew();
    }
  }
}

std::optional<Planned::Piece> Follower::piece(uint32_t number, size_t bytes) const {
  const std::optional<size_t> offset = script_->places().at(number, place_);
  if (!offset) {
    return std::nullopt;
  }
  return Piece{region_ + *offset, Places::rounded(bytes)};
}

std::optional<Planned::Piece> Follower::piece_of(const Block& block) const {
  if (!script_ || region_ == 0 || !script_->places() || block.slot == 0) {
    return std::nullopt;
  }
  return piece(block.slot, block.size);
}

std::optional<Planned::Piece> Follower::piece_of_next(size_t bytes) {
  if (!script_ || region_ == 0 || !script_->places()) {
    return std::nullopt;
  }
  check();
  if (!script_ || cursor_ == script_->events().size()) {
    return std::nullopt;
  }
  const TraceEvent& next = script_->events()[cursor_];
  if (next.kind != TraceEvent::Kind::Allocated || next.value != bytes) {
    return std::nullopt;
  }
  return piece(next.block, bytes);
}

// From now on, LMS does not know what comes.
void Follower::on_demand() {
  script_ = nullptr;
  forget_delayed();
  policy_.forget();
  room_.limit().stretch(0);
  mover_.supply().packing().useful(false);
  mover_.supply().packing().hurry();
}

void Follower::stop() {
  if (on()) {
    recorder_.take();
  }
  for (Block* const block : slots_) {
    if (block) {
      block->slot = 0;
    }
  }
  slots_.clear();
  before_.clear();
  last_ = nullptr;
  clock_.reset();
  laps_.clear();
  settled_ = 0;
  steps_ = 0;
  on_demand();
}

void Follower::forget() {
  forget_scripts();
  period_ = Period();
}

void Follower::forget_scripts() {
  wait();
  const c10::cuda::CUDAGuard guard(device_); // for the events of the scripts
  stop();
  if (planning_.busy()) {
    planning_.take();
  }
  being_planned_ = nullptr;
  scripts_.clear();
  unmanaged_ = 0;
}

void Follower::wait() {
  // In a forked process, there is no thread that makes plans.
  while (planning_.busy() && !planning_.done() && !Lock::forked()) {
    const Lock::Pause pause;
    std::this_thread::yield();
  }
}

} // namespace torch::cuda::lms

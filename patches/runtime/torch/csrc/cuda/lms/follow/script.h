#pragma once

#include <torch/csrc/cuda/lms/block/origin.h>
#include <torch/csrc/cuda/lms/follow/lives.h>
#include <torch/csrc/cuda/lms/follow/places.h>
#include <torch/csrc/cuda/lms/follow/placing.h>
#include <torch/csrc/cuda/lms/follow/slack.h>
#include <torch/csrc/cuda/lms/follow/trial.h>
#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/trace.h>
#include <torch/csrc/cuda/lms/record/recorder.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

// What a plan says to do with a block before an operator.
struct Action {
  enum class Kind : uint8_t { Copy, Drop, Fetch };

  plan::Place place; // of the operator
  Kind kind;
  plan::Place needed; // of the operator that uses the block next; only used for fetches
  plan::Place ended; // of the first operator that is expected to start after its transfer
  uint32_t number; // of the block
  bool packs; // if the block shrinks; only used for copies
};

// What is known of an iteration's blocks besides what operators do with them.
struct Seen {
  struct Of {
    Origin origin;
    bool stays = false; // for more than an operator
  };
  std::vector<Of> blocks; // by number
  // Blocks of the iteration before that nothing used any more.
  struct Rest {
    plan::Place freed; // in this iteration
    size_t bytes;
    uint32_t number; // in the iteration before; 0 if it is not known
  };
  std::vector<Rest> rest;
};

// An iteration that the program repeats: what operators do, as recorded, and the plan for it.
// Blocks have the numbers of the recording.
class Script {
 public:
  explicit Script(const std::vector<TraceEvent>& recorded);

  // Which of these events have to be the same in each repetition. Frees can come at other times,
  // because they depend on Python's garbage collector.
  static bool compared(const TraceEvent& event);
  static bool same(const TraceEvent& a, const TraceEvent& b);

  // Whether another recording is of the same iteration.
  bool is(const std::vector<TraceEvent>& events) const;

  // The events that are compared.
  const std::vector<TraceEvent>& events() const {
    return events_;
  }
  // Number of operators.
  plan::Place size() const {
    return size_;
  }
  uint32_t link(uint32_t number) const {
    return number < links_.size() ? links_[number] : 0;
  }

  // Sets the numbers that blocks have if the same iteration follows: for each number, that in the
  // next iteration; 0 if it has none, and none at all if no block outlives an iteration. Until they
  // are set, plans do nothing across iterations.
  bool linked() const {
    return linked_;
  }
  void set(std::vector<uint32_t> links) {
    links_ = std::move(links);
    linked_ = true;
    make_actions();
  }
  const std::vector<uint32_t>& links() const {
    return links_;
  }

  // The first time, an iteration may do what it does not repeat. So the times of a later one are
  // taken.
  bool waits_for_times() const {
    return !timed_;
  }
  // How many of the next iterations are to be timed, so that this one is among them: more each
  // time, up to a limit.
  unsigned wait_longer(unsigned least) {
    constexpr unsigned kMost = 512;
    patience_ = std::min(std::max(2 * patience_, 2 * least), kMost);
    return patience_;
  }
  // With what is known of the blocks.
  void set(Recording recording, Seen seen) {
    recording_ = std::move(recording);
    seen_ = std::move(seen);
    timed_ = true;
  }
  // The recording with its times, until it is taken to make the plan.
  std::optional<Recording>& recording() {
    return recording_;
  }
  const Seen& seen() const {
    return seen_;
  }

  // What the planner was given; it has no operators until the recording was taken.
  plan::Trace& trace() {
    return trace_;
  }
  // Whether the plan that was asked for last is for this limit, in bytes. Plans are made again only
  // when it has changed clearly.
  bool asked_for(int64_t limit, bool compress) const {
    return asked_.is(limit, compress);
  }
  // Whether that plan may count on compression.
  bool asked_to_compress() const {
    return asked_.compress;
  }
  // What a plan for this limit may use: more if one operator alone needs more.
  int64_t allowance(int64_t limit) const {
    return std::max(limit, needed_);
  }
  // Notes that a plan for this limit was asked for.
  void ask(int64_t limit, bool compress) {
    asked_ = {limit, slack_.part(), compress};
  }
  // One operator alone needs this number of bytes.
  void need(int64_t bytes) {
    needed_ = bytes;
    forget_plans();
  }
  bool needs_more() const {
    return needed_ > 0;
  }

  // Sets the plan that was asked for, and where its blocks have their memory, if they have places.
  void set(plan::Plan plan, Places places);
  // Takes the plan that was made for this limit and the slack's part, if there is one: how long it
  // takes is known, and another one may take longer. Returns whether there is one.
  bool take_back(int64_t limit, bool compress);
  const Places& places() const {
    return made_.places;
  }
  // Whether idle blocks have left since there are these places, so that they come back there.
  bool laid_out() const {
    return laid_out_;
  }
  void lay_out() {
    laid_out_ = true;
  }
  // Whether its plans have to have places.
  Placing& placing() {
    return placing_;
  }
  // Plans have less memory for places from now on: what is known of the times of others does not
  // count.
  void begin_anew() {
    forget_plans();
    slack_ = Slack();
    trial_ = Trial();
  }
  // Plans have places from now on, or none any more if places were given up. What is known of the
  // times without places counts again then.
  void change_kind() {
    if (placing_.wanted()) {
      unplaced_ = {std::exchange(slack_, Slack()), std::exchange(trial_, Trial())};
    } else {
      std::tie(slack_, trial_) = unplaced_;
    }
    asked_.limit = 0;
  }
  // If the trial is over, and blocks do not move as they did when places were compared, plans have
  // none for a while. Then they may have them again. Those that were made are kept, and may be
  // taken back.
  void doubt_places() {
    if (trial_.over() && placing_.doubt(trial_.way())) {
      placed_slack_ = std::exchange(slack_, Slack());
      asked_.limit = 0;
    }
  }
  void trust_places() {
    slack_ = placed_slack_;
    asked_.limit = 0;
  }
  // When its blocks exist.
  Lives& lives() {
    return lives_;
  }
  // How much of what PyTorch may take its plans use.
  Slack& slack() {
    return slack_;
  }
  // In which way it is fastest, if that is up to LMS.
  Trial& trial() {
    return trial_;
  }
  const Trial& trial() const {
    return trial_;
  }
  // What the plan uses, in bytes.
  int64_t limit() const {
    return made_.limit;
  }
  // Which part of what PyTorch may take that was when the plan was asked for.
  double part() const {
    return made_.asked.part;
  }
  // Whether the plan counts on compression.
  bool compressed() const {
    return made_.asked.compress && made_.plan.compressed;
  }
  // What is done while the plan is followed, if that is up to LMS. That is not the trial's way as
  // long as its plan is being made.
  Trial::Way way() const {
    return compressed()                       ? Trial::Way::Plan
           : trial_.way() == Trial::Way::Pack ? Trial::Way::Pack
                                              : Trial::Way::Copy;
  }
  // An iteration has ended. Whether the one before it ended in the same way.
  bool again() {
    return std::exchange(ended_, way()) == way();
  }
  // Whether the program is expected to wait for transfers for much of an iteration.
  bool waits() const {
    constexpr double kMuch = 0.25;
    const plan::Prediction& prediction = made_.plan.prediction;
    return prediction.stall_seconds > kMuch * prediction.seconds;
  }
  bool planned() const {
    return planned_ && rest_ == 0;
  }

  // An iteration took this number of seconds, with the plan or on demand. If those with the plan
  // take longer, it is not followed for a few iterations, which say what one on demand takes now:
  // the program may have waited for its data. As long as the plan is the slower way, it is tried
  // again more and more seldom.
  void took(double seconds, bool with_plan);
  // In order of their places.
  const std::vector<Action>& actions() const {
    return actions_;
  }

  // The place of the block's first use after a place. Places from size() on are in the next
  // iteration. kNone if there is none.
  plan::Place next_use(uint32_t number, plan::Place place) const;

 private:
  // For what a plan is made.
  struct Asked {
    int64_t limit = 0; // bytes; 0: it does not count any more
    double part = 0; // of what PyTorch may take that is
    bool compress = false; // whether the plan may count on compression

    bool is(int64_t other, bool compresses) const {
      constexpr double kChange = 0.005;
      const auto change = static_cast<double>(other - limit);
      return std::abs(change) <= kChange * static_cast<double>(other) && compress == compresses;
    }
  };
  struct Made {
    plan::Plan plan;
    Places places;
    Asked asked;
    int64_t limit = 0; // what the plan uses, in bytes
  };

  void forget_plans() {
    asked_.limit = made_.asked.limit = 0;
    earlier_.clear();
  }
  void follow(Made made);
  void make_actions();
  plan::Place end_of(const plan::Movement& movement) const;

  std::vector<TraceEvent> events_;
  std::vector<uint32_t> links_;
  std::optional<Recording> recording_;
  Seen seen_;
  plan::Place size_ = 0;
  std::vector<std::vector<plan::Place>> uses_; // by number
  Made made_; // the plan that is followed
  std::vector<Made> earlier_; // plans that may be taken back
  std::vector<Action> actions_; // of the plan that is followed
  plan::Trace trace_;
  Lives lives_;
  bool laid_out_ = false;
  bool linked_ = false;
  Placing placing_;
  Slack slack_;
  std::pair<Slack, Trial> unplaced_; // while plans have places, of those without
  Slack placed_slack_; // while places are doubted, that of plans with them
  Trial trial_;
  Trial::Way ended_ = Trial::Way::Copy; // of the iteration that ended last
  Asked asked_; // last
  int64_t needed_ = 0;
  double on_demand_ = 0; // seconds, the least since the plan was doubted last; 0 if not known
  unsigned slow_ = 0; // iterations in a row that took longer with the plan
  unsigned rest_ = 0; // iterations on demand until the plan is followed again
  unsigned next_rest_ = 0; // if the plan is the slower way once more
  bool timed_ = false;
  unsigned patience_ = 0; // see wait_longer()
  bool planned_ = false;
};

} // namespace torch::cuda::lms

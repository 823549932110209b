// The planner for ctypes: handles, and arrays that the caller owns.

#include <torch/csrc/cuda/lms/plan/on_demand.h>
#include <torch/csrc/cuda/lms/plan/plain.h>
#include <torch/csrc/cuda/lms/plan/planner.h>
#include <torch/csrc/cuda/lms/plan/replay.h>
#include <torch/csrc/cuda/lms/plan/schedule.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

using namespace torch::cuda::lms::plan;

namespace {

struct Result {
  Plan plan;
  int64_t fault = 0;
};

// All choices of gaps and of the operators before which their fetches are issued. A drop right
// behind the last use is never worse than a later one.
class Search {
 public:
  Search(const Trace& trace, const Machine& machine)
      : trace_(trace), machine_(machine), gaps_(gaps_of(trace)), chosen_(gaps_.size()) {}

  // How many there are at most.
  double choices() const {
    double product = 1;
    for (const Gap& gap : gaps_) {
      product *= gap.returns() ? static_cast<double>(gap.end - gap.begin) : 2;
      product *= static_cast<double>(gap.begin - first_copy(gap) + 1);
    }
    return product;
  }

  void run(size_t k = 0) {
    if (k == gaps_.size()) {
      judge();
      return;
    }
    run(k + 1);
    const Gap& gap = gaps_[k];
    chosen_[k] = true;
    Move move;
    move.block = gap.block;
    move.last_use = gap.begin < 0 ? Move::kNone : gap.begin;
    move.drop_before = gap.begin + 1;
    for (move.copy_after = first_copy(gap); move.copy_after <= gap.begin; ++move.copy_after) {
      if (!gap.returns()) {
        moves_.push_back(move);
        run(k + 1);
        moves_.pop_back();
        continue;
      }
      move.needed_at = gap.next;
      for (Place fetch = gap.begin + 2; fetch <= gap.next; ++fetch) {
        move.fetch_before = fetch;
        moves_.push_back(move);
        run(k + 1);
        moves_.pop_back();
      }
    }
    chosen_[k] = false;
  }

  double seconds = std::numeric_limits<double>::infinity();
  int64_t bytes = std::numeric_limits<int64_t>::max();

 private:
  void judge() {
    const std::vector<bool> copied = copies(trace_, gaps_, chosen_);
    size_t n = 0;
    for (size_t k = 0; k < gaps_.size(); ++k) {
      if (chosen_[k]) {
        moves_[n++].copies = copied[k];
      }
    }
    const Replay result = replay(trace_, machine_, moves_);
    if (result.valid()) {
      seconds = std::min(seconds, result.prediction.seconds);
      bytes = std::min(bytes, result.prediction.bytes_in + result.prediction.bytes_out);
    }
  }

  // After which operator a copy could start.
  static Place first_copy(const Gap& gap) {
    return gap.begin < 0 || gap.written == Gap::kNever ? gap.begin
                                                       : std::max<Place>(0, gap.written);
  }

  const Trace& trace_;
  const Machine& machine_;
  const std::vector<Gap> gaps_;
  std::vector<bool> chosen_;
  std::vector<Move> moves_;
};

Machine machine_of(int64_t limit, const double* rates) {
  return Machine{limit, rates[0], rates[1], rates[2], rates[3], rates[4]};
}

} // namespace

extern "C" {

Trace* lms_trace(
    int64_t operators,
    const double* seconds,
    int64_t accesses,
    const int64_t* access, // (operator, block, writes) each
    int64_t blocks,
    const int64_t* block, // (bytes, allocated, freed) each
    const double* share, // of each block
    int64_t unmanaged) {
  auto* const trace = new Trace;
  trace->operators.resize(operators);
  for (int64_t i = 0; i < operators; ++i) {
    trace->operators[i].seconds = seconds[i];
    trace->operators[i].name = "op" + std::to_string(i);
  }
  for (int64_t i = 0; i < accesses; ++i) {
    trace->operators[access[3 * i]].accesses.push_back(
        {static_cast<uint32_t>(access[3 * i + 1]), access[3 * i + 2] != 0});
  }
  for (int64_t i = 0; i < blocks; ++i) {
    trace->blocks.push_back({block[3 * i], block[3 * i + 1], block[3 * i + 2], share[i]});
  }
  trace->unmanaged = unmanaged;
  return trace;
}

void lms_trace_delete(Trace* trace) {
  delete trace;
}

Result* lms_plan(const Trace* trace, int64_t limit, const double* rates) {
  return new Result{plan(*trace, machine_of(limit, rates)), 0};
}

Result* lms_replay(
    const Trace* trace,
    int64_t limit,
    const double* rates,
    int64_t moves,
    const int64_t*
        move, // (block, copy_after, copies, drop_before, fetch_before, needed_at, last_use) each
    double part, // that drops come earlier
    int64_t handovers,
    const int64_t* handover) { // (from, to or -1, place) each
  auto* const result = new Result;
  for (int64_t k = 0; k < moves; ++k, move += 7) {
    result->plan.moves.push_back(
        {static_cast<uint32_t>(move[0]),
         move[1],
         move[2] != 0,
         move[3],
         move[4],
         move[5],
         true,
         move[6]});
  }
  result->plan.moves = earlier_drops(std::move(result->plan.moves), part);
  std::vector<Handover> given;
  for (int64_t k = 0; k < handovers; ++k, handover += 3) {
    given.push_back(
        {static_cast<size_t>(handover[0]), static_cast<size_t>(handover[1]), handover[2]});
  }
  Replay played = replay(*trace, machine_of(limit, rates), result->plan.moves, kIterations, given);
  result->plan.prediction = std::move(played.prediction);
  result->plan.problem = played.message;
  result->fault = static_cast<int64_t>(played.fault);
  return result;
}

Result* lms_on_demand(const Trace* trace, int64_t limit, const double* rates) {
  auto* const result = new Result;
  result->plan.prediction = on_demand(*trace, machine_of(limit, rates));
  return result;
}

Result* lms_plan_with_compression(const Trace* trace, int64_t limit, const double* rates) {
  return new Result{plan_with_compression(*trace, machine_of(limit, rates)), 0};
}

// The same without compression where it saves too little.
Result* lms_copy_plainly(const Trace* trace, int64_t limit, const double* rates) {
  const Machine machine = machine_of(limit, rates);
  auto* const result = new Result{plan_with_compression(*trace, machine), 0};
  copy_plainly(*trace, machine, result->plan);
  return result;
}

void lms_result_delete(Result* result) {
  delete result;
}

const char* lms_problem(const Result* result) {
  return result->plan.problem.c_str();
}

// fits, infeasible, infeasible_bytes, moves, fault, bytes_out, bytes_in, peak_bytes; of the bound:
// bytes_in, bytes_out, excess_bytes; and whether the plan counts on compression.
void lms_numbers(const Result* result, int64_t* numbers) {
  const Plan& plan = result->plan;
  const int64_t values[] = {
      plan.fits,
      plan.infeasible,
      plan.infeasible_bytes,
      static_cast<int64_t>(plan.moves.size()),
      result->fault,
      plan.prediction.bytes_out,
      plan.prediction.bytes_in,
      plan.prediction.peak_bytes,
      plan.bound.bytes_in,
      plan.bound.bytes_out,
      plan.bound.excess_bytes,
      plan.compressed};
  std::copy(std::begin(values), std::end(values), numbers);
}

// seconds, stall_seconds, and of the bound: seconds, one_hill_seconds.
void lms_seconds(const Result* result, double* numbers) {
  const Plan& plan = result->plan;
  const double values[] = {
      plan.prediction.seconds,
      plan.prediction.stall_seconds,
      plan.bound.seconds,
      plan.bound.one_hill_seconds};
  std::copy(std::begin(values), std::end(values), numbers);
}

void lms_moves(const Result* result, int64_t* move) {
  for (const Move& from : result->plan.moves) {
    const int64_t values[] = {
        from.block,
        from.copy_after,
        from.copies,
        from.drop_before,
        from.fetch_before,
        from.needed_at,
        from.packs,
        from.last_use};
    move = std::copy(std::begin(values), std::end(values), move);
  }
}

// For each operator.
void lms_operators(
    const Result* result,
    double* starts,
    double* stalls,
    int64_t* causes,
    int64_t* curve) {
  const Prediction& prediction = result->plan.prediction;
  std::copy(prediction.starts.begin(), prediction.starts.end(), starts);
  std::copy(prediction.stalls.begin(), prediction.stalls.end(), stalls);
  std::copy(prediction.curve.begin(), prediction.curve.end(), curve);
  std::transform(prediction.causes.begin(), prediction.causes.end(), causes, [](Cause cause) {
    return static_cast<int64_t>(cause);
  });
}

// Seconds of the best of some runs.
double lms_time(const Trace* trace, int64_t limit, const double* rates, int64_t runs) {
  double best = std::numeric_limits<double>::infinity();
  for (int64_t run = 0; run < runs; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    plan(*trace, machine_of(limit, rates));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

// 0 when there are more choices than these, or none keeps the limit.
int64_t lms_search(
    const Trace* trace,
    int64_t limit,
    const double* rates,
    double choices,
    double* seconds,
    int64_t* bytes) {
  const Machine machine = machine_of(limit, rates);
  Search search(*trace, machine);
  if (search.choices() > choices) {
    return 0;
  }
  search.run();
  *seconds = search.seconds;
  *bytes = search.bytes;
  return search.bytes < std::numeric_limits<int64_t>::max();
}
}

#include "race.h"

#include <cstdio>
#include <utility>

namespace simcuda {
namespace {

// A wrong program has a race at every step, and more reports than this are no help.
constexpr size_t kMaxReports = 1000;

const char* verb(AccessKind kind) {
  return kind == AccessKind::kWrite ? "write" : "read";
}

} // namespace

void VectorClock::join(const VectorClock& other) {
  if (steps_.size() < other.steps_.size())
    steps_.resize(other.steps_.size());
  for (size_t i = 0; i < other.steps_.size(); ++i) {
    if (steps_[i] < other.steps_[i])
      steps_[i] = other.steps_[i];
  }
}

uint64_t VectorClock::tick(Actor actor) {
  const auto index = static_cast<size_t>(actor);
  if (steps_.size() <= index)
    steps_.resize(index + 1);
  return ++steps_[index];
}

uint64_t VectorClock::of(Actor actor) const {
  const auto index = static_cast<size_t>(actor);
  return index < steps_.size() ? steps_[index] : 0;
}

bool VectorClock::covers(const VectorClock& other) const {
  for (size_t i = 0; i < other.steps_.size(); ++i) {
    if (of(static_cast<Actor>(i)) < other.steps_[i])
      return false;
  }
  return true;
}

Actor RaceChecker::add_actor(std::string name) {
  names_.push_back(std::move(name));
  return static_cast<Actor>(names_.size() - 1);
}

void RaceChecker::enable(bool on) {
  enabled_ = on;
  cells_.clear();
}

void RaceChecker::misused(const char* what) {
  if (reports_.size() < kMaxReports)
    reports_.emplace_back(what);
}

void RaceChecker::clear_reports() {
  reports_.clear();
  cells_.clear();
}

void RaceChecker::split(uintptr_t address) {
  auto it = cells_.upper_bound(address);
  if (it == cells_.begin())
    return;
  --it;
  if (it->first == address || it->second.end <= address)
    return;
  Cell upper = it->second;
  it->second.end = address;
  cells_.emplace_hint(std::next(it), address, std::move(upper));
}

// Makes the cells cover [begin, end) without gaps. There must already be splits at both ends.
void RaceChecker::fill_gaps(uintptr_t begin, uintptr_t end) {
  for (uintptr_t at = begin; at < end;) {
    auto it = cells_.lower_bound(at);
    if (it == cells_.end() || it->first > at) {
      const uintptr_t gap_end = it == cells_.end() || it->first > end ? end : it->first;
      Cell cell;
      cell.end = gap_end;
      it = cells_.emplace_hint(it, at, std::move(cell));
    }
    at = it->second.end;
  }
}

void RaceChecker::report(
    const Access& now,
    AccessKind kind,
    const Access& before,
    AccessKind before_kind,
    uintptr_t address,
    size_t size) {
  if (reports_.size() >= kMaxReports)
    return;
  char text[512];
  std::snprintf(
      text,
      sizeof text,
      "race (%s after %s): %s on %s, %zu bytes at %#zx, is not ordered after %s on %s",
      verb(kind),
      verb(before_kind),
      now.what,
      names_[static_cast<size_t>(now.actor)].c_str(),
      size,
      static_cast<size_t>(address),
      before.what,
      names_[static_cast<size_t>(before.actor)].c_str());
  if (log_)
    std::fprintf(stderr, "[simcuda] %s\n", text);
  reports_.emplace_back(text);
}

void RaceChecker::access(
    Actor actor,
    const VectorClock& clock,
    uintptr_t address,
    size_t size,
    AccessKind kind,
    const char* what) {
  if (!enabled_ || size == 0)
    return;
  const uintptr_t end = address + size;
  const Access now{actor, clock.of(actor), what};
  const auto ordered = [&](const Access& before) {
    return before.actor < 0 || before.actor == actor || before.step <= clock.of(before.actor);
  };
  split(address);
  split(end);
  bool reported = false; // one report for each access is enough
  const auto check = [&](const Access& before, AccessKind before_kind) {
    if (reported || ordered(before))
      return;
    report(now, kind, before, before_kind, address, size);
    reported = true;
  };
  if (kind == AccessKind::kRead)
    fill_gaps(address, end);
  const auto first = cells_.lower_bound(address);
  const auto last = cells_.lower_bound(end);
  for (auto it = first; it != last; ++it) {
    Cell& cell = it->second;
    check(cell.write, AccessKind::kWrite);
    if (kind == AccessKind::kRead) {
      bool known = false;
      for (Access& read : cell.reads) {
        if (read.actor != actor)
          continue;
        read = now;
        known = true;
      }
      if (!known)
        cell.reads.push_back(now);
    } else {
      for (const Access& read : cell.reads)
        check(read, AccessKind::kRead);
    }
  }
  // The bytes have the same history from now on, which keeps the map small.
  if (kind == AccessKind::kWrite) {
    Cell cell;
    cell.end = end;
    cell.write = now;
    cells_.emplace_hint(cells_.erase(first, last), address, std::move(cell));
  }
}

void RaceChecker::forget(uintptr_t address, size_t size) {
  if (!enabled_ || size == 0)
    return;
  split(address);
  split(address + size);
  cells_.erase(cells_.lower_bound(address), cells_.lower_bound(address + size));
}

} // namespace simcuda

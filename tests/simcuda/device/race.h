// Happens-before race checker.
//
// Each stream is an actor, and all host threads together are one more actor. The clock of an actor
// tells how much of every other actor's work is ordered before its next operation. Events,
// synchronization and the rules of the legacy stream update clocks. If two accesses use the same
// bytes, at least one of them is a write, and neither is ordered before the other, they are a race.
// A race is reported even if the simulated device has run the accesses in a harmless order. Host
// threads are not distinguished, so a race between two of them is not found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace simcuda {

using Actor = int;
inline constexpr Actor kHost = 0;

class VectorClock {
 public:
  void join(const VectorClock& other);
  // Starts the actor's next step and returns its number.
  uint64_t tick(Actor actor);
  uint64_t of(Actor actor) const;
  // Whether all that the other clock knows is known to this one.
  bool covers(const VectorClock& other) const;

 private:
  std::vector<uint64_t> steps_;
};

enum class AccessKind { kRead, kWrite };

class RaceChecker {
 public:
  explicit RaceChecker(bool enabled, bool log) : enabled_(enabled), log_(log) {}

  Actor add_actor(std::string name);

  // Records that `actor`, whose clock is `clock`, touches [address, address + size). `what` names
  // the operation and must outlive the checker.
  void access(
      Actor actor,
      const VectorClock& clock,
      uintptr_t address,
      size_t size,
      AccessKind kind,
      const char* what);

  // The range was freed or handed out again: earlier accesses do not matter to its next owner.
  void forget(uintptr_t address, size_t size);

  bool enabled() const {
    return enabled_;
  }
  void enable(bool on);
  const std::vector<std::string>& reports() const {
    return reports_;
  }
  void clear_reports();
  // Reports something that is not a race, but that a correct program does not do either.
  void misused(const char* what);

 private:
  struct Access {
    Actor actor = -1;
    uint64_t step = 0;
    const char* what = "";
  };
  // Bytes [key, end) that share a history: the last write, and the reads since.
  struct Cell {
    uintptr_t end = 0;
    Access write;
    std::vector<Access> reads;
  };
  using Cells = std::map<uintptr_t, Cell>;

  void split(uintptr_t address);
  void fill_gaps(uintptr_t begin, uintptr_t end);
  void report(
      const Access& now,
      AccessKind kind,
      const Access& before,
      AccessKind before_kind,
      uintptr_t address,
      size_t size);

  bool enabled_;
  bool log_;
  Cells cells_;
  std::vector<std::string> names_{"the host"};
  std::vector<std::string> reports_;
};

} // namespace simcuda

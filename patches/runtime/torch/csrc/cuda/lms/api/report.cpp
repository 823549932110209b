#include <torch/csrc/cuda/lms/api/report.h>

#include <torch/csrc/cuda/lms/device/pager.h>
#include <torch/csrc/cuda/lms/guard/watch.h>
#include <torch/csrc/cuda/lms/host/host.h>

#include <functional>
#include <string>
#include <vector>

namespace torch::cuda::lms {

namespace {

struct Entry {
  std::string name;
  std::function<int64_t(Pager&)> value;
};

using Member = Stat Stats::*;
using ArrayMember = StatArray Stats::*;
using Count = int64_t Stats::*;

void add(
    std::vector<Entry>& entries,
    const std::string& name,
    std::function<const Stat&(Pager&)> stat) {
  entries.push_back({name + ".current", [stat](Pager& p) { return stat(p).current; }});
  entries.push_back({name + ".peak", [stat](Pager& p) { return stat(p).peak; }});
  entries.push_back({name + ".allocated", [stat](Pager& p) { return stat(p).allocated; }});
  entries.push_back({name + ".freed", [stat](Pager& p) { return stat(p).freed; }});
}

std::vector<Entry> make_entries() {
  std::vector<Entry> entries;
  const std::vector<std::pair<const char*, ArrayMember>> arrays = {
      {"pinned", &Stats::pinned}, {"pinned_bytes", &Stats::pinned_bytes}};
  const char* const pools[] = {"all", "small_pool", "large_pool"};
  for (const auto& [name, member] : arrays) {
    for (size_t pool = 0; pool < 3; ++pool) {
      const ArrayMember array = member;
      add(entries, std::string(name) + "." + pools[pool], [array, pool](Pager& p) -> const Stat& {
        return (p.stats.*array).stats[pool];
      });
    }
  }
  // The first LMS counted page-outs under these names.
  entries.push_back({"reclaimed", [](Pager& p) { return p.stats.page_out_count; }});
  entries.push_back({"reclaimed_bytes", [](Pager& p) { return p.stats.page_out_bytes; }});
  const char* const sources[kSources] = {
      "freelist",
      "cudamalloc",
      "reclaim_one",
      "reclaim_fragments",
      "reclaim_all",
      "cudamalloc_retry"};
  for (size_t source = 0; source < kSources; ++source) {
    entries.push_back({std::string("alloc_distribution.") + sources[source], [source](Pager& p) {
                         return p.stats.alloc_distribution[source];
                       }});
  }
  const std::vector<std::pair<const char*, Member>> stats = {
      {"lms.resident_bytes", &Stats::resident_bytes},
      {"lms.paged_out_bytes", &Stats::paged_out_bytes},
      {"lms.held_bytes", &Stats::held_bytes}};
  for (const auto& entry : stats) {
    const Member member = entry.second;
    add(entries, entry.first, [member](Pager& p) -> const Stat& { return p.stats.*member; });
  }
  const std::vector<std::pair<const char*, Count>> counts = {
      {"lms.page_out_count", &Stats::page_out_count},
      {"lms.page_out_bytes", &Stats::page_out_bytes},
      {"lms.page_in_count", &Stats::page_in_count},
      {"lms.page_in_bytes", &Stats::page_in_bytes},
      {"lms.clean_count", &Stats::clean_count},
      {"lms.compacted_count", &Stats::compacted_count},
      {"lms.compacted_bytes", &Stats::compacted_bytes},
      {"lms.adopted", &Stats::adopted},
      {"lms.out_of_memory_retries", &Stats::out_of_memory_retries},
      {"lms.out_of_memory_caught", &Stats::out_of_memory_caught},
      {"lms.over_limit_count", &Stats::over_limit_count},
      {"lms.over_limit_bytes_peak", &Stats::over_limit_bytes_peak},
      {"lms.clean_violations", &Stats::clean_violations},
      {"lms.violations", &Stats::violations},
      {"lms.plans", &Stats::plans},
      {"lms.planned_iterations", &Stats::planned_iterations},
      {"lms.plan_departures", &Stats::plan_departures},
      {"lms.copied_ahead_count", &Stats::copied_ahead_count},
      {"lms.prefetch_count", &Stats::prefetch_count},
      {"lms.placed_count", &Stats::placed_count}};
  for (const auto& entry : counts) {
    const Count count = entry.second;
    entries.push_back({entry.first, [count](Pager& p) { return p.stats.*count; }});
  }
  using Row = uint64_t codec::Totals::Row::*;
  const std::vector<std::pair<const char*, Row>> compressed = {
      {"lms.compressed_count", &codec::Totals::Row::blocks},
      {"lms.compressed_bytes", &codec::Totals::Row::bytes},
      {"lms.compressed_written_bytes", &codec::Totals::Row::written}};
  for (const auto& entry : compressed) {
    const Row row = entry.second;
    entries.push_back({entry.first, [row](Pager& p) {
                         return static_cast<int64_t>(
                             p.mover.supply().packing().totals().sum().*row);
                       }});
  }
  entries.push_back(
      {"lms.release_caught", [](Pager& p) { return p.mover.supply().hashes().caught(); }});
  add(entries, "lms.host_bytes", [](Pager& p) -> const Stat& {
    return p.mover.supply().arena().pinned();
  });
  add(entries, "lms.host_used_bytes", [](Pager& p) -> const Stat& {
    return p.mover.supply().arena().used();
  });
  add(entries, "lms.host_busy_bytes", [](Pager& p) -> const Stat& {
    return p.mover.supply().arena().busy();
  });
  add(entries, "lms.host_compressed_bytes", [](Pager& p) -> const Stat& {
    return p.mover.supply().slots().used();
  });
  add(entries, "lms.host_compressed_tensor_bytes", [](Pager& p) -> const Stat& {
    return p.mover.supply().slots().tensors();
  });
  for (size_t node = 0; node < host::nodes(); ++node) {
    entries.push_back({"lms.host_bytes_on_node" + std::to_string(node), [node](Pager& p) {
                         return static_cast<int64_t>(p.mover.supply().arena().bytes_on_node(node));
                       }});
  }
  entries.push_back({"lms.hook_bytes", [](Pager& p) {
                       int64_t bytes = 0;
                       p.registry.each([&](Block& block) {
                         const bool used = block.stays.has(Reason::Hook);
                         bytes += used ? static_cast<int64_t>(block.size) : 0;
                       });
                       return bytes;
                     }});
  entries.push_back({"lms.free_bytes", [](Pager& p) { return p.room.free_bytes().all; }});
  entries.push_back(
      {"lms.largest_free_bytes", [](Pager& p) { return p.room.free_bytes().largest; }});
  entries.push_back(
      {"lms.watching", [](Pager&) { return int64_t(Watch::get().counting() ? 0 : 1); }});
  entries.push_back(
      {"lms.limit_bytes", [](Pager& p) { return static_cast<int64_t>(p.room.limit().shown()); }});
  return entries;
}

const std::vector<Entry>& entries() {
  static const auto* const instance = new std::vector<Entry>(make_entries());
  return *instance;
}

} // namespace

size_t report_size() {
  return entries().size();
}

const char* report_name(size_t index) {
  return index < entries().size() ? entries()[index].name.c_str() : nullptr;
}

void report(Pager& pager, int64_t* values) {
  for (const Entry& entry : entries()) {
    *values++ = entry.value(pager);
  }
}

} // namespace torch::cuda::lms

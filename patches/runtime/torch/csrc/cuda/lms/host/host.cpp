#include <torch/csrc/cuda/lms/host/host.h>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <fstream>
#include <limits>

namespace torch::cuda::lms::host {

namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// Reads a file that contains only a number. Returns `none` if it contains "max" or does not exist.
size_t number_in(const std::string& path, size_t none) {
  std::ifstream file(path);
  size_t number = 0;
  return file >> number ? number : none;
}

// Reads the number that follows a word, from a file with lines of the form "word number".
size_t field_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word == name) {
      size_t number = 0;
      file >> number;
      return number;
    }
  }
  return 0;
}

// Kept free: the kernel kills processes before an allocation fails.
size_t reserve(size_t total) {
  return total / 64;
}

size_t left(size_t limit, size_t usage, size_t reclaimable) {
  if (limit >= kUnlimited / 2) { // version 1 says "none" with a huge number
    return kUnlimited;
  }
  // Pages that only cache files are reclaimed before the limit is enforced.
  const size_t used = usage - std::min(usage, reclaimable) + reserve(limit);
  return limit - std::min(limit, used);
}

// The limits of all groups apply, from the process's own group up to the root.
size_t cgroup_bytes(const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  size_t bytes = kUnlimited;
  std::string line;
  while (std::getline(groups, line)) {
    const size_t controllers = line.find(':');
    const size_t path = line.find(':', controllers + 1);
    if (path == std::string::npos) {
      continue;
    }
    const std::string names = line.substr(controllers + 1, path - controllers - 1);
    const bool unified = names.empty();
    if (!unified && ("," + names + ",").find(",memory,") == std::string::npos) {
      continue;
    }
    const std::string base = root + "/sys/fs/cgroup" + (unified ? "" : "/memory");
    std::string group = line.substr(path + 1);
    for (;;) {
      const std::string folder = base + (group == "/" ? "" : group) + "/";
      const std::string stat = folder + "memory.stat";
      const std::string total = unified ? "" : "total_"; // with the groups below
      const size_t files =
          field_of(stat, total + "inactive_file") + field_of(stat, total + "active_file");
      // Above memory.high, the kernel slows the group down until it frees memory.
      const size_t limit = unified ? std::min(
                                         number_in(folder + "memory.max", kUnlimited),
                                         number_in(folder + "memory.high", kUnlimited))
                                   : number_in(folder + "memory.limit_in_bytes", kUnlimited);
      const size_t usage =
          number_in(folder + (unified ? "memory.current" : "memory.usage_in_bytes"), 0);
      bytes = std::min(bytes, left(limit, usage, files));
      const size_t slash = group.rfind('/');
      if (slash == std::string::npos || group == "/") {
        break;
      }
      group = slash == 0 ? "/" : group.substr(0, slash);
    }
  }
  return bytes;
}

} // namespace

size_t available_bytes(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const size_t total = field_of(meminfo, "MemTotal:") * 1024;
  const size_t available = field_of(meminfo, "MemAvailable:") * 1024;
  if (total == 0) {
    return kUnlimited;
  }
  return std::min(available - std::min(available, reserve(total)), cgroup_bytes(root));
}

int node_of_device(const std::string& bus_id, const std::string& root) {
  std::string name = bus_id;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  std::ifstream file(root + "/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

size_t nodes() {
  static const size_t count = [] {
    size_t found = 0;
    while (access(("/sys/devices/system/node/node" + std::to_string(found)).c_str(), F_OK) == 0) {
      ++found;
    }
    return std::max<size_t>(found, 1);
  }();
  return count;
}

void prefer_node(void* data, size_t bytes, int node) {
  if (node < 0 || node >= 64) {
    return;
  }
  const uint64_t mask = uint64_t(1) << node;
  // If this fails, the memory is only slower, so the error is ignored.
  (void)syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, &mask, sizeof(mask) * 8 + 1, 0);
}

std::vector<size_t> bytes_by_node(const char* data, size_t bytes) {
  std::vector<size_t> by_node(nodes(), 0);
  std::vector<const void*> pages;
  for (size_t offset = 0; offset < bytes; offset += kHugePage) {
    pages.push_back(data + offset);
  }
  std::vector<int> where(pages.size(), 0);
  // Without target nodes, the call only reports where the pages are.
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, where.data(), 0) != 0) {
    std::fill(where.begin(), where.end(), 0);
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    const size_t node = where[i] >= 0 ? static_cast<size_t>(where[i]) : 0;
    by_node[std::min(node, by_node.size() - 1)] += std::min(kHugePage, bytes - i * kHugePage);
  }
  return by_node;
}

} // namespace torch::cuda::lms::host

#include <torch/csrc/cuda/lms/kernel/cache.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace torch::cuda::lms::cache {

namespace {

constexpr uint64_t kMagic = 0x31304c4e524b534d; // "MSKRNL01"
constexpr size_t kLargest = size_t(64) << 20; // bytes; larger files were not written by LMS

// FNV-1a.
uint64_t hash(const std::string& text, uint64_t state) {
  for (const char byte : text) {
    state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return state;
}
constexpr uint64_t kBasis = 0xcbf29ce484222325;

struct Header {
  uint64_t magic;
  uint64_t size; // bytes of the content, which follows the header
  uint64_t hash; // of the content
};

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// Returns an empty path if there is no cache.
std::string folder() {
  const char* const use = std::getenv("USE_PYTORCH_KERNEL_CACHE");
  if (use != nullptr && std::strcmp(use, "0") == 0) {
    return "";
  }
  if (const char* const chosen = variable("PYTORCH_KERNEL_CACHE_PATH")) {
    return chosen;
  }
  if (const char* const caches = variable("XDG_CACHE_HOME")) {
    return std::string(caches) + "/torch/kernels";
  }
  if (const char* const home = variable("HOME")) {
    return std::string(home) + "/.cache/torch/kernels";
  }
  return "";
}

void make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    (void)mkdir(path.substr(0, end).c_str(), 0755);
  }
  (void)mkdir(path.c_str(), 0755);
}

bool put(const std::string& path, const std::string& content) {
  const File file(std::fopen(path.c_str(), "wbx"), std::fclose);
  if (!file) {
    return false;
  }
  const Header header{kMagic, content.size(), hash(content, kBasis)};
  return std::fwrite(&header, sizeof header, 1, file.get()) == 1 &&
         std::fwrite(content.data(), 1, content.size(), file.get()) == content.size() &&
         std::fflush(file.get()) == 0;
}

} // namespace

std::string digest(const std::string& text) {
  char digits[33];
  const unsigned long long halves[] = {hash(text, kBasis), hash(text, ~kBasis)};
  (void)std::snprintf(digits, sizeof digits, "%016llx%016llx", halves[0], halves[1]);
  return digits;
}

std::string read(const std::string& name) {
  const std::string in = folder();
  const File file(in.empty() ? nullptr : std::fopen((in + "/" + name).c_str(), "rb"), std::fclose);
  Header header;
  if (!file || std::fread(&header, sizeof header, 1, file.get()) != 1 || header.magic != kMagic ||
      header.size > kLargest) {
    return "";
  }
  std::string content(header.size, '\0');
  const bool whole = std::fread(&content[0], 1, content.size(), file.get()) == content.size() &&
                     std::fgetc(file.get()) == EOF && hash(content, kBasis) == header.hash;
  return whole ? content : "";
}

void write(const std::string& name, const std::string& content) {
  const std::string in = folder();
  if (in.empty()) {
    return;
  }
  make_folders(in);
  // Write to another file and rename it, because another process may read or write this entry at
  // the same time.
  const std::string beside = in + "/" + name + "." + std::to_string(getpid());
  if (!put(beside, content) || std::rename(beside.c_str(), (in + "/" + name).c_str()) != 0) {
    (void)unlink(beside.c_str());
  }
}

} // namespace torch::cuda::lms::cache

// In PyTorch 1.x, some libraries contain the CUDA runtime, linked statically, so that no other
// library can replace it. This writes a jump to the simulated function into each of its functions.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "control.h"
#include "state.h"

namespace simcuda {
namespace {

struct __attribute__((packed)) Jump {
  uint8_t code[6] = {0xff, 0x25, 0, 0, 0, 0}; // jmp *0(%rip)
  const void* target;
};

void write_jump(uintptr_t address, const void* target) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = address & ~(page - 1);
  const size_t size = address + sizeof(Jump) - first;
  Jump jump;
  jump.target = target;
  if (mprotect(reinterpret_cast<void*>(first), size, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
    log("no jump could be written: %s", std::strerror(errno));
    return;
  }
  std::memcpy(reinterpret_cast<void*>(address), &jump, sizeof jump);
  mprotect(reinterpret_cast<void*>(first), size, PROT_READ | PROT_EXEC);
}

// Redirects the runtime's functions that are in the file's symbol table. Returns their number.
long redirect(const std::string& path, uintptr_t base) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header))
    return 0;
  std::string sections(size_t{header.e_shnum} * sizeof(Elf64_Shdr), '\0');
  file.seekg(static_cast<std::streamoff>(header.e_shoff));
  file.read(&sections[0], static_cast<std::streamsize>(sections.size()));
  const auto* section = reinterpret_cast<const Elf64_Shdr*>(sections.data());
  long count = 0;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    if (section[i].sh_type != SHT_SYMTAB)
      continue;
    const auto load = [&](const Elf64_Shdr& from) {
      std::string data(from.sh_size, '\0');
      file.seekg(static_cast<std::streamoff>(from.sh_offset));
      file.read(&data[0], static_cast<std::streamsize>(data.size()));
      return data;
    };
    const std::string table = load(section[i]);
    const std::string names = load(section[section[i].sh_link]);
    const auto* symbol = reinterpret_cast<const Elf64_Sym*>(table.data());
    for (size_t n = 0; n < table.size() / sizeof(Elf64_Sym); ++n) {
      const char* const name = names.data() + symbol[n].st_name;
      const bool runtime =
          std::strncmp(name, "cuda", 4) == 0 || std::strncmp(name, "__cuda", 6) == 0;
      if (!runtime || ELF64_ST_TYPE(symbol[n].st_info) != STT_FUNC ||
          ELF64_ST_BIND(symbol[n].st_info) != STB_LOCAL || symbol[n].st_size < sizeof(Jump))
        continue;
      if (const void* const target = dlsym(RTLD_DEFAULT, name)) {
        write_jump(base + symbol[n].st_value, target);
        ++count;
      }
    }
  }
  return count;
}

} // namespace
} // namespace simcuda

// Call this when torch's libraries are loaded and nothing has used the device yet. Returns how many
// functions now lead to the simulated device.
SIMCUDA_API long simcuda_take_static_calls() {
  long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        const std::string path = info->dlpi_name;
        if (path.find("/torch/lib/libc10_cuda.so") != std::string::npos ||
            path.find("/torch/lib/libtorch_python.so") != std::string::npos)
          *static_cast<long*>(data) += simcuda::redirect(path, info->dlpi_addr);
        return 0;
      },
      &count);
  simcuda::log("%ld functions of a static CUDA runtime lead here", count);
  return count;
}

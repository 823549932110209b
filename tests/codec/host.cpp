// A C interface to what of the codec runs on the host.
#include <torch/csrc/cuda/lms/codec/choice.h>
#include <torch/csrc/cuda/lms/codec/kernels.h>
#include <torch/csrc/cuda/lms/codec/totals.h>

#include <cstring>

using namespace torch::cuda::lms::codec;

extern "C" {

// The text lives until the next call.
const char* lms_source(int kind) {
  static std::string text;
  text = source(static_cast<Kind>(kind));
  return text.c_str();
}

int lms_kind_of(const char* scalar_type) {
  return static_cast<int>(kind_of(scalar_type));
}

const char* lms_name(int kind) {
  return name(static_cast<Kind>(kind));
}

uint64_t lms_slots(uint64_t bytes) {
  return slots(bytes);
}

uint64_t lms_buffer_bytes(uint64_t bytes) {
  return buffer_bytes(bytes);
}

uint64_t lms_most_written(uint64_t bytes) {
  return most_written(bytes);
}

unsigned lms_thread_blocks(uint64_t bytes, unsigned most, unsigned threads) {
  return grid(bytes, {most, threads}).blocks;
}

// Whether each page-out packs, if the block would shrink or not then.
void lms_choices(const bool* shrinks, int count, bool* packs) {
  static_assert(sizeof(Choice) == 2, "one for each block");
  Choice choice;
  for (int i = 0; i < count; ++i) {
    packs[i] = choice.pack();
    if (packs[i]) {
      choice.packed(shrinks[i]);
    } else {
      choice.copied();
    }
  }
}

// Adds (kind, bytes, written) of `count` blocks. Returns blocks, bytes and written of the kind, and
// of all kinds; and both ratios.
void lms_totals(const uint64_t* blocks, int count, int kind, uint64_t* sums, double* ratios) {
  Totals totals;
  totals.add(Kind::Byte, 1, 1);
  totals.reset();
  for (int i = 0; i < count; ++i) {
    totals.add(static_cast<Kind>(blocks[3 * i]), blocks[3 * i + 1], blocks[3 * i + 2]);
  }
  const Totals::Row rows[] = {totals.of(static_cast<Kind>(kind)), totals.sum()};
  std::memcpy(sums, &rows[0], sizeof rows[0]);
  std::memcpy(sums + 3, &rows[1], sizeof rows[1]);
  ratios[0] = rows[0].ratio();
  ratios[1] = rows[1].ratio();
}

} // extern "C"

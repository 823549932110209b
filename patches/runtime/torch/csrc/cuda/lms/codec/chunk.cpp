#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec::text {

// How a chunk is packed and unpacked by a warp.
const char* const kChunk = R"cuda(
LMS_INLINE Word* words_of(Scratch& scratch) {
  return scratch.data[0].words;
}

// Moves the values that are not zero to the front, and writes the bitmap. The last octet is packed as
// a whole, so it is filled.
LMS_INLINE void squeeze(Scratch& scratch, Word filler) {
  Word* const words = words_of(scratch);
  u32* const bitmap = reinterpret_cast<u32*>(scratch.packed);
  u32 done = 0;
  for (u32 first = 0; first < kWords; first += 32) {
    Lanes<Word> word;
    Lanes<bool> kept;
    each_lane([&](u32 lane) {
      word[lane] = words[first + lane];
      kept[lane] = word[lane] != 0;
    });
    const u32 mask = ballot(kept);
    each_lane([&](u32 lane) {
      if (kept[lane]) {
        words[done + ones(mask & ((1u << lane) - 1))] = word[lane];
      }
      if (lane == 0) {
        bitmap[first / 32] = mask;
      }
    });
    done += ones(mask);
  }
  each_lane([&](u32 lane) {
    if (done + lane < (done + 7) / 8 * 8) {
      words[done + lane] = filler;
    }
  });
}

// The reverse, from the last value to the first one, so that no value is overwritten before it is
// moved.
LMS_INLINE void spread(Scratch& scratch, u32 count) {
  Word* const words = words_of(scratch);
  const u32* const bitmap = reinterpret_cast<const u32*>(scratch.packed);
  u32 left = count;
  for (u32 first = kWords; first > 0; first -= 32) {
    const u32 mask = bitmap[first / 32 - 1];
    left -= ones(mask);
    Lanes<Word> word;
    each_lane([&](u32 lane) {
      const u32 rank = left + ones(mask & ((1u << lane) - 1));
      word[lane] = (mask >> lane & 1) != 0 ? words[rank % kWords] : Word(0);
    });
    each_lane([&](u32 lane) { words[first - 32 + lane] = word[lane]; });
  }
}

// How to pack floats: the width of codes, and whether zeros are left out. Codes are offsets from
// `base`, so that the largest code has the largest offset. Small values that are out of range are
// odd: their codes are stored beside, with their indices.
LMS_INLINE Head plan_floats(Scratch& scratch) {
  Lanes<u32> lane_count;
  Lanes<u32> lane_least; // of the codes' complements
  each_lane([&](u32 lane) {
    u32 count = 0;
    u32 high = 0;
    for (u32 octet = lane; octet < kWords / 8; octet += 32) {
      const Octet from = scratch.data[octet];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        const Word word = from.words[i];
        const u32 code = u32(Format::code(word));
        count += word != 0;
        high = code > high ? code : high; // that of zero is 0, the smallest one
      }
    }
    lane_count[lane] = count;
    lane_least[lane] = ~high;
  });
  const u32 count = sum(lane_count);
  const u32 high = ~least(lane_least);

  // How many values have an offset from the largest code of how many bits, in a byte of each lane
  // (1 to 8 bits; the others are not odd in any case).
  Lanes<u32> lane_lengths[4];
  each_lane([&](u32 lane) {
    u64 lengths = 0;
    for (u32 octet = lane; octet < kWords / 8; octet += 32) {
      const Octet from = scratch.data[octet];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        const Word word = from.words[i];
        const u32 bits = length(u32(high - Format::code(word)));
        lengths += word != 0 && bits != 0 ? u64(1) << (8 * bits - 8) : 0;
      }
    }
    const u64 even = lengths & 0x00ff00ff00ff00ffull;
    const u64 uneven = lengths >> 8 & 0x00ff00ff00ff00ffull;
    lane_lengths[0][lane] = u32(even);
    lane_lengths[1][lane] = u32(even >> 32);
    lane_lengths[2][lane] = u32(uneven);
    lane_lengths[3][lane] = u32(uneven >> 32);
  });
  u32 lengths[4];
  LMS_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    lengths[i] = sum(lane_lengths[i]);
  }

  // Each lane looks at one of the choices.
  Lanes<u32> cost; // bytes, and then the choice
  each_lane([&](u32 lane) {
    const u32 width = lane % 16;
    const bool sparse = lane >= 16;
    u32 odd = 0;
    LMS_UNROLL
    for (u32 bits = 1; bits <= 8; ++bits) {
      const u32 pair = lengths[(bits + 1) % 2 * 2 + (bits - 1) / 4];
      odd += bits > width ? pair >> ((bits - 1) / 2 % 2 * 16) & 0xffff : 0;
    }
    if (!sparse && length(high) > width) {
      odd += kWords - count; // zeros
    }
    const u32 values = sparse ? count : kWords;
    const u32 bitmap = sparse ? kWords / 8 : 0;
    const u32 bytes = bitmap + (values + 7) / 8 * (Format::kRest + width) + 3 * odd + 1;
    const bool possible =
        width <= Format::kCode && odd < 256 && (sparse ? count > 0 && count < kWords : true);
    cost[lane] = possible ? bytes << 16 | odd << 8 | lane : ~0u;
  });
  const u32 best = least(cost);
  const u32 width = best % 16;
  Head head{0, best >> 4 & 1 ? count : kWords, width, 0, best >> 8 & 255};
  const u32 range = (1u << width) - 1;
  head.base = high > range ? high - range : 0;
  if (count == 0) {
    head = Head{0, 0, 0, 0, 0};
  } else if ((best >> 16) > kMost) {
    head.width = kRaw;
  }
  return head;
}

LMS_INLINE Head plan_integers(Scratch& scratch, Field* base) {
  Lanes<Field> low;
  Lanes<Field> high; // complements
  each_lane([&](u32 lane) {
    Field smallest = ~Field(0);
    Field largest = 0;
    for (u32 octet = lane; octet < kWords / 8; octet += 32) {
      const Octet from = scratch.data[octet];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        const Field code = Format::code(from.words[i]);
        smallest = code < smallest ? code : smallest;
        largest = code > largest ? code : largest;
      }
    }
    low[lane] = smallest;
    high[lane] = ~largest;
  });
  *base = least(low);
  const u32 width = length(Field(~least(high) - *base));
  Head head{0, width, 0, sizeof(Word) == 1 ? u32(*base) : 0, 0};
  if (body_of(head).size > kMost) {
    head.width = kRaw;
  }
  return head;
}

// How to pack the chunk in `scratch.data`. `base` is that of integers.
LMS_INLINE Head plan_chunk(Scratch& scratch, Field* base) {
  return Format::kFloat ? plan_floats(scratch) : plan_integers(scratch, base);
}

// A chunk in `scratch.data` to `scratch.packed`, as planned, unless the head says that it is raw.
LMS_INLINE void pack_chunk(Scratch& scratch, const Head& head, Field base) {
  if (head.width == kRaw) {
    return;
  }
  const Body body = body_of(head);
  each_lane([&](u32 lane) {
    // Without garbage between the parts, the same bytes are always packed to the same bytes.
    for (u32 v = lane; v < (body.size + 15) / 16; v += 32) {
      scratch.packed[v].x = scratch.packed[v].y = 0;
    }
  });
  if (Format::kFloat) {
    base = Field(head.base);
    if (body.bitmap != 0) {
      squeeze(scratch, Format::join(base, 0)); // which is not odd
    }
  } else if (body.base != 0) {
    each_lane([&](u32 lane) {
      if (lane == 0) {
        scratch.packed[0].x = base;
        scratch.packed[0].y = 0;
      }
    });
  }
  write_fields(scratch, body, base);
}

// The reverse, if the chunk is packed.
LMS_INLINE void unpack_chunk(Scratch& scratch, const Head& head) {
  const Body body = body_of(head);
  if (Format::kFloat && head.count == 0) {
    each_lane([&](u32 lane) {
      for (u32 octet = lane; octet < kWords / 8; octet += 32) {
        scratch.data[octet] = Octet();
      }
    });
    return;
  }
  const Field base = body.base != 0 ? Field(scratch.packed[0].x) : Field(head.base);
  read_fields(scratch, body, base);
  if (body.bitmap != 0) {
    spread(scratch, head.count);
  }
}
)cuda";

} // namespace torch::cuda::lms::codec::text

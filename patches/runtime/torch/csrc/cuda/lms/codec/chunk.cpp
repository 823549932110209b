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
  u8* const bitmap = reinterpret_cast<u8*>(scratch.packed);
  u32 done = 0;
  for (u32 first = 0; first < kWords / 8; first += 32) {
    Lanes<Octet> octet;
    Lanes<u32> kept;
    Lanes<u32> count;
    each_lane([&](u32 lane) {
      octet[lane] = scratch.data[first + lane];
      kept[lane] = not_zero(octet[lane]);
      count[lane] = ones(kept[lane]);
    });
    Lanes<u32> before = sum_before(count);
    each_lane([&](u32 lane) {
      u32 to = done + before[lane];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        if ((kept[lane] >> i & 1) != 0) {
          words[to++] = octet[lane].words[i];
        }
      }
      bitmap[first + lane] = u8(kept[lane]);
    });
    done += sum(count);
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
  const Word* const words = words_of(scratch);
  const u8* const bitmap = reinterpret_cast<const u8*>(scratch.packed);
  u32 left = count;
  for (u32 end = kWords / 8; end > 0; end -= 32) {
    Lanes<u32> kept;
    Lanes<u32> kept_count;
    each_lane([&](u32 lane) {
      kept[lane] = bitmap[end - 32 + lane];
      kept_count[lane] = ones(kept[lane]);
    });
    Lanes<u32> before = sum_before(kept_count);
    left -= sum(kept_count);
    Lanes<Octet> octet;
    each_lane([&](u32 lane) {
      u32 at = left + before[lane];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        const bool is = (kept[lane] >> i & 1) != 0;
        octet[lane].words[i] = is ? words[at % kWords] : Word(0);
        at += is;
      }
    });
    each_lane([&](u32 lane) { scratch.data[end - 32 + lane] = octet[lane]; });
  }
}

// How to pack floats: the width of codes, and whether zeros are left out. Codes are offsets from
// `base`, so that the largest code has the largest offset. Small values that are out of range are
// odd: their codes are stored beside, with their indices.
LMS_INLINE Head plan_floats(Scratch& scratch) {
  constexpr u32 kOctets = kWords / 8 / 32; // of each lane
  struct Codes {
    Eight octets[kOctets];
  };
  Lanes<Codes> codes;
  Lanes<u32> lane_count;
  Lanes<u32> lane_least; // of the codes' complements
  each_lane([&](u32 lane) {
    u32 count = 0;
    u32 largest = 0;
    LMS_UNROLL
    for (u32 k = 0; k < kOctets; ++k) {
      const Octet from = scratch.data[k * 32 + lane];
      const Eight found = codes_of(from);
      LMS_UNROLL
      for (u32 i = 0; i < 2 * sizeof(Word); ++i) {
        count += values_in(from.part(i));
      }
      LMS_UNROLL
      for (u32 i = 0; i < 2; ++i) {
        largest = larger_halves(largest, found.half[i] & 0x00ff00ff);
        largest = larger_halves(largest, found.half[i] >> 8 & 0x00ff00ff);
      }
      codes[lane].octets[k] = found;
    }
    largest = largest >> 16 > (largest & 0xffff) ? largest >> 16 : largest & 0xffff;
    lane_count[lane] = counted(count);
    lane_least[lane] = ~largest;
  });
  const u32 count = sum(lane_count);
  const u32 high = ~least(lane_least); // the code of zero is 0, the smallest one

  // How many values, zeros among them, have an offset from the largest code that needs more than
  // `width` bits: in the low half of beyond[width % 4] for widths up to 3, in the high half for 4
  // to 7.
  Lanes<u32> lane_beyond[4];
  each_lane([&](u32 lane) {
    u32 found[8] = {};
    constexpr u32 kRound = 4; // octets: a count of more than 15 would not fit into four bits
    LMS_UNROLL
    for (u32 first = 0; first < kOctets; first += kRound) {
      u32 counts[4] = {}; // in each four bits: of a byte's bit i, and of its bit i + 4
      LMS_UNROLL
      for (u32 k = first; k < first + kRound && k < kOctets; ++k) {
        LMS_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          // Bit i of a byte is set if the offset has any bit from i on.
          u32 bits = high * kBytes - codes[lane].octets[k].half[half];
          bits |= bits >> 1 & 0x7f * kBytes;
          bits |= bits >> 2 & 0x3f * kBytes;
          bits |= bits >> 4 & 0x0f * kBytes;
          LMS_UNROLL
          for (u32 i = 0; i < 4; ++i) {
            counts[i] += bits >> i & 0x11111111;
          }
        }
      }
      LMS_UNROLL
      for (u32 i = 0; i < 4; ++i) {
        found[i] += sum_of_bytes(counts[i] & 0x0f * kBytes);
        found[i + 4] += sum_of_bytes(counts[i] >> 4 & 0x0f * kBytes);
      }
    }
    LMS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      lane_beyond[i][lane] = found[i] | found[i + 4] << 16;
    }
  });
  u32 beyond[4];
  LMS_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    beyond[i] = sum(lane_beyond[i]);
  }

  // Each lane looks at one of the choices.
  Lanes<u32> cost; // bytes, and then the choice
  each_lane([&](u32 lane) {
    const u32 width = lane % 16;
    const bool sparse = lane >= 16;
    const u32 uneven = width % 2 != 0 ? beyond[1] : beyond[0];
    const u32 others = width % 2 != 0 ? beyond[3] : beyond[2];
    const u32 pair = width % 4 < 2 ? uneven : others;
    u32 odd = width < 8 ? pair >> (width / 4 * 16) & 0xffff : 0;
    if (sparse && length(high) > width) {
      odd -= kWords - count; // zeros
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
  if (Format::kFloat) {
    write_floats(scratch, body, u32(base));
  } else {
    write_integers(scratch, body, base);
  }
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
  if (Format::kFloat) {
    read_floats(scratch, body, u32(base));
  } else {
    read_integers(scratch, body, base);
  }
  if (body.bitmap != 0) {
    spread(scratch, head.count);
  }
}
)cuda";

} // namespace torch::cuda::lms::codec::text

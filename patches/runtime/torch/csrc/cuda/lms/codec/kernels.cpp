#include <torch/csrc/cuda/lms/codec/kernels.h>

#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec {

namespace {

// One warp packs one chunk at a time. The format of a packed chunk is described in layout.h.
//
// The link decides how fast this is, so the kernels keep four things:
// - A store to host memory is 16 bytes per lane, and 512 bytes of consecutive addresses per warp
//   except at the ends of a chunk, and it ends at a line of 128 bytes. So nearly all of PCIe's
//   packets are full. A group's heads are one line, which is written and read at once.
// - A chunk takes its room from a counter in device memory as soon as its size is known. The
//   answer takes a while, and the chunk is packed meanwhile.
// - Only the vectors of 16 bytes that a chunk uses are written and read.
// - A read of host memory takes 1 to 2 us, and how many bytes to read is known from the head alone.
//   So the heads of a warp's next group are read while it unpacks a group, and a chunk is read
//   while the one before it is unpacked. A warp has nearly always one chunk on the way. At 50 GB/s
//   and 2 us there have to be 100 KB on the way, which is what 80 to 100 warps have.
constexpr char kText[] = R"cuda(
struct Bytes {
  const char* data; // device memory, aligned to 16 bytes
  u64 size;
};

struct Target {
  char* data; // device memory, aligned to 16 bytes
  u64 size;
};

struct Part {
  char* data; // pinned host memory
  u64 size;
};

struct Parts {
  u64 count;
  Part part[8];
};
static_assert(sizeof(Parts) == 136, "as in kernels.h");

struct Window {
  const char* data; // device memory, aligned to 16 bytes
  u64 size;
  u64 begin;
  u64 end;
};

struct Windows {
  u64 begin;
  u64 size;
  u64 count;
};

struct Range {
  u32 before;
  u32 end;
};

struct Piece {
  u64 first; // group
  u64 end;
  u64 begin; // bytes from the start of the buffer
  u64 beyond;
  u64 pieces;
};

struct Tally {
  u64 packed; // bytes
  u64 raw; // chunks
  u64 lines;
  u64 done; // warps
};
static_assert(sizeof(Tally) == 32, "as in kernels.h");

static_assert(sizeof(Scratch) == 4096, "as in kernels.h");

// Of this warp.
LMS_INLINE Scratch& own_scratch() {
#ifdef __CUDACC__
  extern __shared__ Scratch scratches[];
  return scratches[threadIdx.x / 32];
#else
  __shared__ Scratch scratch;
  return scratch;
#endif
}

// The place of a chunk in the buffer. A part may end in it, but no part is smaller than a chunk, so
// it is in two parts at most.
struct Place {
  char* first;
  char* second;
  u32 split; // vectors of 16 bytes in the first part

  LMS_DEVICE char* at(u32 vector) const {
    return vector < split ? first + u64(vector) * 16 : second + u64(vector - split) * 16;
  }
};

LMS_INLINE Place place_at(const Parts& parts, u64 offset) {
  u32 i = 0;
  while (i + 1 < parts.count && offset >= parts.part[i].size) {
    offset -= parts.part[i++].size;
  }
  char* const first = parts.part[i].data + offset;
  if (i + 1 == parts.count || parts.part[i].size - offset >= kChunk) {
    return {first, first, kChunk / 16};
  }
  return {first, parts.part[i + 1].data, u32(parts.part[i].size - offset) / 16};
}

// No line of 128 bytes is in two parts.
LMS_INLINE char* address(const Parts& parts, u64 offset) {
  return place_at(parts, offset).first;
}

// Tell the simulated device what is read and written.
LMS_INLINE void reads(const Place& place, u32 size) {
  LMS_READS(place.first, size < place.split * 16 ? size : place.split * 16);
  if (size > place.split * 16) {
    LMS_READS(place.second, size - place.split * 16);
  }
}

LMS_INLINE void writes(const Place& place, u32 size) {
  LMS_WRITES(place.first, size < place.split * 16 ? size : place.split * 16);
  if (size > place.split * 16) {
    LMS_WRITES(place.second, size - place.split * 16);
  }
}

// A block has at most 2^24 chunks, so their numbers, and those of groups, are short.
LMS_INLINE u32 whole_chunks(u64 bytes) {
  return u32(bytes / kChunk);
}

LMS_INLINE u32 chunks_of(u64 bytes) {
  return u32((bytes + kChunk - 1) / kChunk);
}

LMS_INLINE u32 groups_of(u32 chunks) {
  return (chunks + kGroup - 1) / kGroup;
}

LMS_INLINE u64 line_of(u32 group) {
  return kLine + u64(group) * kLine; // the first line is the summary
}

LMS_INLINE u64 slots_of(u32 chunks) {
  const u64 lines = 1 + groups_of(chunks);
  return (lines * kLine + kChunk - 1) / kChunk * kChunk;
}

LMS_INLINE const ulonglong2* vectors_at(const char* bytes) {
  return reinterpret_cast<const ulonglong2*>(bytes);
}

// Loads the first `count` vectors at the address, or of the place.
LMS_INLINE void load(Lanes<Vectors>& vectors, const ulonglong2* at, u32 count) {
  each_lane([&](u32 lane) {
    LMS_UNROLL
    for (u32 v = 0; v < kVectors; ++v) {
      if (v * 32 + lane < count) {
        vectors[lane].own[v] = __ldcs(at + v * 32 + lane);
      }
    }
  });
}

LMS_INLINE void load(Lanes<Vectors>& vectors, const Place& place, u32 count) {
  each_lane([&](u32 lane) {
    LMS_UNROLL
    for (u32 v = 0; v < kVectors; ++v) {
      if (v * 32 + lane < count) {
        vectors[lane].own[v] = __ldcs(vectors_at(place.at(v * 32 + lane)));
      }
    }
  });
}

LMS_INLINE void store(ulonglong2* to, Lanes<Vectors>& vectors, u32 count) {
  each_lane([&](u32 lane) {
    LMS_UNROLL
    for (u32 v = 0; v < kVectors; ++v) {
      if (v * 32 + lane < count) {
        to[v * 32 + lane] = vectors[lane].own[v];
      }
    }
  });
}

static_assert(kHashed == kChunk && kStrandVectors == kVectors, "a lane has a strand");

// Hashes the vectors of a whole chunk.
LMS_INLINE void hash_chunk(Lanes<u64>& sums, Lanes<Vectors>& vectors, u32 chunk) {
  each_lane([&](u32 lane) {
    Strand strand;
    LMS_UNROLL
    for (u32 v = 0; v < kVectors; ++v) {
      strand.add(vectors[lane].own[v]);
    }
    sums[lane] += strand.result(chunk, lane);
  });
}

// The same, while the chunk is copied.
LMS_INLINE void copy_chunk(char* to, const ulonglong2* at, Lanes<u64>& sums, u32 chunk) {
  each_lane([&](u32 lane) {
    Strand strand;
    LMS_UNROLL
    for (u32 v = 0; v < kVectors; ++v) {
      const ulonglong2 vector = at[v * 32 + lane];
      reinterpret_cast<ulonglong2*>(to)[v * 32 + lane] = vector;
      strand.add(vector);
    }
    sums[lane] += strand.result(chunk, lane);
  });
}

// The first store ends at a line.
LMS_INLINE void copy(const Place& to, const ulonglong2* at, u32 count) {
  const u32 before = u32(reinterpret_cast<u64>(to.first) / 16 % (kLine / 16));
  each_lane([&](u32 lane) {
    for (u32 v = lane; v < before + count; v += 32) {
      if (v >= before) {
        *reinterpret_cast<ulonglong2*>(to.at(v - before)) = at[v - before];
      }
    }
  });
}

// The last bytes, which are not a whole chunk. A place has room for whole vectors.
LMS_INLINE void
copy_rest_out(const Place& to, const char* at, u32 size, Lanes<u64>& sums, u32 chunk) {
  each_lane([&](u32 lane) {
    Strand strand;
    for (u32 v = lane; v < (size + 15) / 16; v += 32) {
      ulonglong2 words;
      words.x = words.y = 0;
      for (u32 i = 0; i < 16 && v * 16 + i < size; ++i) {
        const u64 byte = u8(at[v * 16 + i]);
        (i < 8 ? words.x : words.y) |= byte << (i % 8 * 8);
      }
      *reinterpret_cast<ulonglong2*>(to.at(v)) = words;
      strand.add(words);
    }
    sums[lane] += strand.result(chunk, lane);
  });
}

LMS_INLINE void
copy_rest_in(char* to, const Place& at, u32 size, Lanes<u64>& sums, u32 chunk) {
  each_lane([&](u32 lane) {
    Strand strand;
    for (u32 v = lane; v < (size + 15) / 16; v += 32) {
      const ulonglong2 words = *vectors_at(at.at(v));
      for (u32 i = 0; i < 16 && v * 16 + i < size; ++i) {
        to[v * 16 + i] = char((i < 8 ? words.x : words.y) >> (i % 8 * 8));
      }
      strand.add(words);
    }
    sums[lane] += strand.result(chunk, lane);
  });
}

// Where packed chunks go. take() gives a chunk its place, in one lane, in units of its own, and
// offset() says later where that is in the buffer, when it may be written.
struct Direct {
  const Parts& host;
  u64 slots;
  Tally* tally; // null: every chunk has a place of its full size
  Pace pace;

  LMS_DEVICE u32 take(u32 chunk, u32 used) {
    return tally == nullptr ? chunk * (kChunk / kLine)
                            : u32(atomicAdd(&tally->lines, u64((used + kLine - 1) / kLine)));
  }
  LMS_DEVICE u64 offset(u32 taken, u32 used) {
    pace.wait(used);
    return slots + u64(taken) * kLine;
  }
  LMS_DEVICE Place place(u64 offset) const {
    return place_at(host, offset);
  }
  LMS_DEVICE u64* heads(u32 group) const {
    return reinterpret_cast<u64*>(address(host, line_of(group)));
  }
};

// Packed into device memory, in units of 16 bytes: no line is written by two warps there, because
// the copy engine writes the buffer.
struct Staged {
  const Parts& host;
  const Target& all_heads;
  const Target& chunks;
  const Piece& piece;
  u64* vectors;
  u64* lines;

  LMS_DEVICE u32 take(u32, u32 used) const {
    return u32(atomicAdd(vectors, u64(used / 16)));
  }
  LMS_DEVICE u64 offset(u32 vector, u32 used) const {
    const u64 place = u64(vector) * 16;
    return place + used <= chunks.size
        ? piece.begin + place
        : piece.beyond + atomicAdd(lines, u64((used + kLine - 1) / kLine)) * kLine;
  }
  LMS_DEVICE Place place(u64 offset) const {
    if (offset < piece.beyond) {
      char* const at = chunks.data + (offset - piece.begin);
      return {at, at, kChunk / 16};
    }
    return place_at(host, offset);
  }
  LMS_DEVICE u64* heads(u32 group) const {
    return reinterpret_cast<u64*>(all_heads.data + u64(group) * kLine);
  }
};

struct Packed {
  u64 bytes;
  u32 raw; // chunks
  u64 hash; // this warp's share
};

// Packs the groups from the first one on, one after every `warps`.
template <typename To>
LMS_INLINE Packed pack_groups(const Bytes& source, u32 first, u32 end, u32 warps, To& to) {
  Scratch& scratch = own_scratch();
  ulonglong2* const data = reinterpret_cast<ulonglong2*>(scratch.data);
  const u32 whole = whole_chunks(source.size);
  const u32 chunks = chunks_of(source.size);

  Packed all{0, 0, 0};
  Lanes<u64> hashes = {};
  Lanes<u32> taken;
  Lanes<u64> offset_of;
  Lanes<Vectors> ahead;
  if (first < end && first * kGroup < whole) {
    load(ahead, vectors_at(source.data + u64(first) * (kGroup * kChunk)), kChunk / 16);
  }
  for (u32 group = first; group < end; group += warps) {
    const u32 left = chunks - group * kGroup;
    const u32 here = left < kGroup ? left : kGroup;
    Lanes<u64> heads;
    for (u32 i = 0; i < here; ++i) {
      const u32 chunk = group * kGroup + i;
      const u32 rest = chunk < whole ? kChunk : u32(source.size - u64(chunk) * kChunk);
      Head head{0, 0, kRaw, 0, 0};
      Field base = 0;
      u32 used = (rest + 15) / 16 * 16; // bytes of the place
      if (chunk < whole) {
        store(data, ahead, kChunk / 16);
        hash_chunk(hashes, ahead, chunk);
        const u32 next = i + 1 < here ? chunk + 1 : (group + warps) * kGroup;
        if (next < whole && (i + 1 < here || group + warps < end)) {
          load(ahead, vectors_at(source.data + u64(next) * kChunk), kChunk / 16);
        }
        head = plan_chunk(scratch, &base);
        used = (body_of(head).size + 15) / 16 * 16;
      }
      each_lane([&](u32 lane) {
        if (lane == 0) {
          taken[lane] = to.take(chunk, used);
        }
      });
      if (chunk < whole) {
        pack_chunk(scratch, head, base);
      }
      each_lane([&](u32 lane) {
        if (lane == 0) {
          offset_of[lane] = to.offset(taken[lane], used);
        }
      });
      const u64 offset = from(offset_of, 0);
      const Place place = to.place(offset);
      if (chunk < whole) {
        copy(place, head.width == kRaw ? data : scratch.packed, used / 16);
      } else {
        copy_rest_out(place, source.data + u64(chunk) * kChunk, rest, hashes, chunk);
      }
      writes(place, used);
      all.bytes += used;
      all.raw += head.width == kRaw;
      head.where = u32(offset / 16);
      const u64 word = head.word();
      each_lane([&](u32 lane) {
        if (lane == i) {
          heads[lane] = word;
        }
      });
    }
    u64* const line = to.heads(group);
    LMS_WRITES(line, here * sizeof(u64));
    each_lane([&](u32 lane) {
      if (lane < here) {
        line[lane] = heads[lane];
      }
    });
    all.bytes += here * sizeof(u64);
  }
  all.hash = sum(hashes);
  return all;
}

// The last warp writes the summary, and resets the tally for the next block. The host takes the
// summary to be complete when it sees the first word. `begin` is where the tally's lines begin.
LMS_INLINE void summarize(const Parts& host, Tally* tally, const Packed& all, u64 warps, u64 begin) {
  atomicAdd(&tally->packed, all.bytes);
  atomicAdd(&tally->raw, u64(all.raw));
  __threadfence();
  if (atomicAdd(&tally->done, u64(1)) != warps - 1) {
    return;
  }
  __threadfence();
  u64* const summary = reinterpret_cast<u64*>(host.part[0].data);
  LMS_WRITES(summary, 3 * sizeof(u64));
  summary[1] = atomicExch(&tally->raw, u64(0));
  summary[2] = begin + atomicExch(&tally->lines, u64(0)) * kLine;
  tally->done = 0;
  __threadfence_system();
  summary[0] = atomicExch(&tally->packed, u64(0));
}

LMS_INLINE void expect(Slot* slot, const Packed& all, u32 warps, const Bytes& source) {
  u64 hash;
  if (slot != nullptr && added(slot, all.hash, warps, source.size, &hash)) {
    expect(slot, hash);
  }
}

extern "C" __global__ void __launch_bounds__(LMS_THREADS, 1)
lms_pack(
    Bytes source, Parts host, Tally* tally, const u32* only_if, u64 pace, Slot* slot) {
  if (only_if != nullptr && *only_if == 0) {
    return;
  }
  const u32 warp = blockIdx.x * LMS_WARPS + threadIdx.x / 32;
  const u32 warps = gridDim.x * LMS_WARPS;
  const u32 chunks = chunks_of(source.size);
  const u64 slots = slots_of(chunks);
  const u32 groups = groups_of(chunks);
  Direct to{host, slots, tally, {pace, warp, warps < groups ? warps : groups}};
  const Packed all = pack_groups(source, warp, groups, warps, to);
  if (threadIdx.x % 32 != 0) {
    return;
  }
  expect(slot, all, warps, source);
  if (tally != nullptr) {
    summarize(host, tally, all, warps, slots);
  } else if (warp == 0) {
    u64* const summary = reinterpret_cast<u64*>(host.part[0].data);
    LMS_WRITES(summary + 2, sizeof(u64));
    summary[2] = slots + u64(chunks) * kChunk;
  }
}

extern "C" __global__ void __launch_bounds__(LMS_THREADS, 1)
lms_pack_piece(
    Bytes source,
    Parts host,
    Target heads,
    Target chunks,
    Piece piece,
    Tally* tally,
    u64* vectors,
    Slot* slot) {
  const u32 warp = blockIdx.x * LMS_WARPS + threadIdx.x / 32;
  const u32 warps = gridDim.x * LMS_WARPS;
  Staged to{host, heads, chunks, piece, vectors, &tally->lines};
  const Packed all = pack_groups(source, u32(piece.first) + warp, u32(piece.end), warps, to);
  if (threadIdx.x % 32 == 0) {
    expect(slot, all, warps * u32(piece.pieces), source);
    summarize(host, tally, all, warps * piece.pieces, piece.beyond);
  }
}

LMS_INLINE void load_heads(Lanes<u64>& heads, const Parts& host, u32 group, u32 chunks) {
  const u64* const line = reinterpret_cast<const u64*>(address(host, line_of(group)));
  const u32 left = chunks - group * kGroup;
  LMS_READS(line, (left < kGroup ? left : kGroup) * sizeof(u64));
  each_lane([&](u32 lane) { heads[lane] = lane < kGroup && lane < left ? __ldcs(line + lane) : 0; });
}

// Where the chunks end, from the summary.
LMS_INLINE u64 end_of(const Parts& host) {
  const u64* const end = reinterpret_cast<const u64*>(host.part[0].data) + 2;
  LMS_READS(end, sizeof(u64));
  return *end;
}

// Loads a whole chunk as it was stored.
LMS_INLINE void load_stored(Lanes<Vectors>& vectors, const Parts& host, const Head& head) {
  const u32 used = (body_of(head).size + 15) / 16;
  const Place place = place_at(host, u64(head.where) * 16);
  reads(place, used * 16);
  load(vectors, place, used);
}

// The warp's share of the hash of what has come back.
LMS_INLINE void
confirm(Slot* slot, u64 share, u32 shares, const Target& target, u32* corrupted) {
  u64 hash;
  if (slot != nullptr && added(slot, share, shares, target.size, &hash)) {
    slot->pieces = 0;
    confirm(slot, hash, corrupted);
  }
}

extern "C" __global__ void __launch_bounds__(LMS_THREADS, 1)
lms_unpack(Target target, Parts host, u64 beyond, Slot* slot, u32* corrupted) {
  if (beyond != 0 && end_of(host) <= beyond) {
    if (slot != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
      confirm(slot, hash_of(atomicExch(&slot->pieces, u64(0)), target.size), corrupted);
    }
    return;
  }
  Scratch& scratch = own_scratch();
  ulonglong2* const data = reinterpret_cast<ulonglong2*>(scratch.data);
  const u32 warp = blockIdx.x * LMS_WARPS + threadIdx.x / 32;
  const u32 warps = gridDim.x * LMS_WARPS;
  const u32 whole = whole_chunks(target.size);
  const u32 chunks = chunks_of(target.size);

  Lanes<u64> hashes = {};
  Lanes<u64> heads;
  Lanes<u64> next_heads;
  Lanes<Vectors> ahead;
  if (warp * kGroup < chunks) {
    load_heads(heads, host, warp, chunks);
  }
  if (warp * kGroup < whole) {
    load_stored(ahead, host, Head::of(from(heads, 0)));
  }
  for (u32 group = warp; group * kGroup < chunks; group += warps) {
    const u32 left = chunks - group * kGroup;
    const u32 here = left < kGroup ? left : kGroup;
    if ((group + warps) * kGroup < chunks) {
      load_heads(next_heads, host, group + warps, chunks);
    }
    for (u32 i = 0; i < here; ++i) {
      const u32 chunk = group * kGroup + i;
      const Head head = Head::of(from(heads, i));
      char* const to = target.data + u64(chunk) * kChunk;
      if (chunk >= whole) {
        const u32 rest = u32(target.size - u64(chunk) * kChunk);
        const Place place = place_at(host, u64(head.where) * 16);
        reads(place, (rest + 15) / 16 * 16);
        copy_rest_in(to, place, rest, hashes, chunk);
        break;
      }
      const u32 used = (body_of(head).size + 15) / 16;
      store(head.width == kRaw ? data : scratch.packed, ahead, used);
      const u32 next = i + 1 < here ? chunk + 1 : (group + warps) * kGroup;
      if (next < whole) {
        load_stored(ahead, host, Head::of(i + 1 < here ? from(heads, i + 1) : from(next_heads, 0)));
      }
      if (head.width != kRaw) {
        unpack_chunk(scratch, head);
      }
      copy_chunk(to, data, hashes, chunk);
    }
    heads = next_heads;
  }
  const u64 share = sum(hashes);
  if (threadIdx.x % 32 == 0) {
    confirm(slot, share, warps, target, corrupted);
  }
}

// Bytes of a chunk in the buffer. The last bytes of a block are stored as they are.
LMS_INLINE u32 size_of(const Head& head, u32 chunk, u64 bytes) {
  return u64(chunk + 1) * kChunk <= bytes ? body_of(head).size : u32(bytes - u64(chunk) * kChunk);
}

// Chunks are packed in their order, except that warps are not equally fast. So those of a window are
// near each other, and to look for them among all chunks would take longer than to unpack them.
extern "C" __global__ void __launch_bounds__(LMS_THREADS, 1)
lms_find(u32 chunks, Bytes all_heads, Windows windows, Target ranges) {
  const u32 warp = blockIdx.x * LMS_WARPS + threadIdx.x / 32;
  const u32 warps = gridDim.x * LMS_WARPS;
  const u64* const words = reinterpret_cast<const u64*>(all_heads.data);
  for (u32 first = warp * 32; first < chunks; first += warps * 32) {
    Lanes<u32> window;
    Lanes<u32> is_chunk;
    each_lane([&](u32 lane) {
      const u32 chunk = first + lane;
      is_chunk[lane] = chunk < chunks ? 1u << lane : 0;
      const u32 vector = chunk < chunks ? Head::of(words[chunk]).where - u32(windows.begin / 16) : 0;
      const u32 index = vector / u32(windows.size / 16);
      window[lane] = index < windows.count ? index : u32(windows.count - 1);
    });
    for (u32 left = sum(is_chunk); left != 0;) {
      const u32 index = from(window, lowest(left));
      Lanes<u32> same;
      each_lane([&](u32 lane) { same[lane] = window[lane] == index ? 1u << lane : 0; });
      const u32 found = sum(same) & left;
      each_lane([&](u32 lane) {
        if (lane == 0) {
          Range* const range = reinterpret_cast<Range*>(ranges.data) + index;
          atomicMax(&range->before, ~(first + lowest(found)));
          atomicMax(&range->end, first + length(found));
        }
      });
      left &= ~found;
    }
  }
}

// From device memory, so nothing has to be read ahead.
extern "C" __global__ void __launch_bounds__(LMS_THREADS, 1)
lms_unpack_window(
    Target target,
    Bytes all_heads,
    Window window,
    const Range* range,
    u32 windows,
    Slot* slot,
    u32* corrupted) {
  Scratch& scratch = own_scratch();
  ulonglong2* const data = reinterpret_cast<ulonglong2*>(scratch.data);
  const u32 warp = blockIdx.x * LMS_WARPS + threadIdx.x / 32;
  const u32 warps = gridDim.x * LMS_WARPS;
  const u32 whole = whole_chunks(target.size);
  const u32 first = range != nullptr ? ~range->before : 0;
  const u32 end = range != nullptr ? range->end : chunks_of(target.size);
  const u64* const words = reinterpret_cast<const u64*>(all_heads.data);
  Lanes<u64> hashes = {};
  // Each lane looks at the head of another one of the warp's next chunks.
  for (u32 next = first + warp; next < end; next += 32 * warps) {
    Lanes<u64> heads;
    Lanes<u32> inside;
    each_lane([&](u32 lane) {
      const u32 chunk = next + lane * warps;
      heads[lane] = chunk < end ? words[chunk] : 0;
      const Head head = Head::of(heads[lane]);
      const u64 offset = u64(head.where) * 16;
      const bool found = chunk < end && offset >= window.begin && offset < window.end &&
          offset + size_of(head, chunk, target.size) <= window.begin + window.size;
      inside[lane] = found ? 1u << lane : 0;
    });
    for (u32 found = sum(inside); found != 0; found &= found - 1) {
      const u32 i = lowest(found);
      const u32 chunk = next + i * warps;
      const Head head = Head::of(from(heads, i));
      const u32 size = size_of(head, chunk, target.size);
      char* const to = target.data + u64(chunk) * kChunk;
      char* const at = const_cast<char*>(window.data) + (u64(head.where) * 16 - window.begin);
      if (chunk >= whole) {
        copy_rest_in(to, {at, at, kChunk / 16}, size, hashes, chunk);
        continue;
      }
      const u32 used = (size + 15) / 16;
      Lanes<Vectors> vectors;
      load(vectors, vectors_at(at), used);
      store(head.width == kRaw ? data : scratch.packed, vectors, used);
      if (head.width != kRaw) {
        unpack_chunk(scratch, head);
      }
      copy_chunk(to, data, hashes, chunk);
    }
  }
  const u64 share = sum(hashes);
  if (threadIdx.x % 32 != 0) {
    return;
  }
  if (windows != 0) {
    confirm(slot, share, warps * windows, target, corrupted);
  } else if (slot != nullptr) {
    atomicAdd(&slot->pieces, share);
  }
}
)cuda";

} // namespace

std::string source(Kind kind) {
  // The most threads of a thread block, for __launch_bounds__(). On the CPU, a block has one warp.
  return "#ifdef __CUDACC__\n#define LMS_THREADS " + std::to_string(kMostThreads) +
         "\n#endif\n#define LMS_KIND " + std::to_string(static_cast<int>(kind)) + "\n" +
         text::kWarp + text::kHash + text::kPace + text::kFormat + text::kFloats + text::kFields +
         text::kChunk + kText;
}

} // namespace torch::cuda::lms::codec

// The ring of a product of few rows: a block's share of the columns, and how w and x come in.
enum { BOX = 8 * 128, HALVES = PAIRED + 1, TILES = (UNITS * HALVES + 1) / 2, OWN = (TILES + TILE_WARPS - 1) / TILE_WARPS,
       WARPS = K_WARPS * TILE_WARPS, THREADS = WARPS * 32, MOST_SLOTS = 16,
       // A row of sums: so long that neither fragments nor eights of them share banks.
       STRIDE = TILES * 16 + 4,
       // Boxes of each row of w in a slot: where elements are codes, a box has more of them.
       W_SLICES = SLICES * W_BITS / 16,
       // Those of a slot that are of x.
       X_BYTES = MADE_BYTES ? 0 : SLICES * X_ROWS * 128,
       // Between rows of x that a block made, in chunks of 16 bytes.
       PITCH = MADE_BYTES / (X_ROWS * 16) };

struct Problem {
  u32 real, columns, depth, chunks, ring, barriers;
  // The block's share, and what it takes at a time at the most, all in units of 8 columns.
  u32 first, units, passes, most;
  u32 of_w, slot_bytes, slots;
};

// Columns of a pass.
DEVICE u32 begin_of(const Problem& p, u32 pass) { return p.first + p.units * pass / p.passes; }

// The box of `rows` eights, of those that units are copied in, that a unit is in: where it begins
// and how many it has.
struct Boxes {
  u32 first, rows;
  DEVICE Boxes(u32 unit, u32 units) : first(0), rows(4) {
    while (units - first < rows || unit >= first + rows) {
      if (units - first < rows) rows /= 2;
      else first += rows;
    }
  }
};

// A place in the ring.
struct Slot {
  u32 index, phase;
  DEVICE void next(const Problem& p) {
    if (++index == p.slots) { index = 0; phase ^= 1; }
  }
};

DEVICE u32 full(const Problem& p, u32 slot) { return p.barriers + slot * 8; }
DEVICE u32 empty(const Problem& p, u32 slot) { return p.barriers + (MOST_SLOTS + slot) * 8; }

DEVICE void fill_ring(const Problem& p, const TensorMap* x, const TensorMap& w8, const TensorMap& w16, const TensorMap& w32) {
  const u32 all = p.passes * p.chunks;
  u32 pass = 0, chunk = 0, begin = p.first, units = begin_of(p, 1) - begin;
  Slot slot = {0, 0};
  auto of_w = [&]() {
    barrier_wait(empty(p, slot.index), slot.phase ^ 1);
    const u32 barrier = full(p, slot.index), slice = chunk * W_SLICES;
    barrier_arrive_expecting(barrier, units * (HALVES * W_SLICES * BOX) + X_BYTES);
    u32 to = p.ring + slot.index * p.slot_bytes, unit = 0;
    auto copy = [&](const TensorMap& w, u32 eights) {
#pragma unroll
      for (u32 half = 0; half < HALVES; ++half)
      {
        const u32 at = to + half * units * (W_SLICES * BOX), row = half * p.columns + (begin + unit) * 8;
        if (W_SLICES > 1) copy_slices_once(at, w, row, slice, barrier);
        else copy_box(at, w, slice * 64, row, barrier);
      }
      to += eights * (W_SLICES * BOX);
      unit += eights;
    };
#pragma unroll 1
    while (units - unit >= 4) copy(w32, 4);
    if (units - unit >= 2) copy(w16, 2);
    if (units - unit >= 1) copy(w8, 1);
  };
  auto of_x = [&](const Slot& slot, u32 chunk) {
    if (X_BYTES) copy_slices(p.ring + slot.index * p.slot_bytes + p.of_w, *x, 0, chunk * SLICES, full(p, slot.index));
  };
  auto advance = [&]() {
    slot.next(p);
    if (++chunk == p.chunks) {
      chunk = 0;
      begin = begin_of(p, ++pass);
      units = begin_of(p, pass + 1) - begin;
    }
  };
  // The first weights are on their way before the wait.
  const u32 ahead = min(all, p.slots);
#pragma unroll 1
  for (u32 i = 0; i < ahead; ++i, advance()) of_w();
  PW_WAIT();
  Slot early = {0, 0};
  u32 of_early = 0;
#pragma unroll 1
  for (u32 i = 0; i < ahead; ++i, early.next(p)) {
    of_x(early, of_early);
    if (++of_early == p.chunks) of_early = 0;
  }
#pragma unroll 1
  for (u32 i = ahead; i < all; ++i, advance()) {
    of_w();
    of_x(slot, chunk);
  }
}

// What a warp multiplies: a part of a slot's depth, of some of its tiles.
struct Part {
  const Bytes16 *of_w, *of_x, *made;
  // The slot's place in k; where the tiles begin, in eights, and how many they have.
  u32 chunk, begin, units;
  u32 of_k, of_tiles;
  // Where this lane's row of each tile is in a slot, and how far slices are from each other.
  u32 row_at[OWN], apart[OWN];
};

// A tile is found by walking the sequences in device data, so that a grid of the most tiles that
// there can be serves every division of the rows among them.
enum { PAGE = 16 };

struct Tile {
  u32 sequence, at, of;
};

// The tile of this number among those of EACH query rows of the sequences that bring fewest to
// most tokens; false past the last. Thirty-two sequences at a time, by their number of tiles.
template <int EACH> DEVICE bool find_tile(Tile& found, u32 number, const i32* query_lengths, u32 real, u32 fewest, u32 most) {
  const u32 lane = threadIdx.x % 32;
  for (u32 sequence = 0; sequence < real; sequence += 32) {
    const u32 mine = sequence + lane;
    const i32 n = mine < real ? query_lengths[mine] : 0;
    const bool counts = n > 0 && (u32)n >= fewest && (u32)n <= most;
    const u32 tiles = counts ? blocks_for((u32)n * GROUP, EACH) : 0;
    u32 upto = tiles;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const u32 lower = __shfl_up_sync(0xffffffffu, upto, by);
      if (lane >= (u32)by) upto += lower;
    }
    const u32 here = __ballot_sync(0xffffffffu, upto > number);
    if (here != 0) {
      const int which = __ffs((int)here) - 1;
      found.sequence = sequence + which;
      found.at = number - __shfl_sync(0xffffffffu, upto - tiles, which);
      found.of = __shfl_sync(0xffffffffu, tiles, which);
      return true;
    }
    number -= __shfl_sync(0xffffffffu, upto, 31);
  }
  return false;
}

// The keys of a sequence; a block table holds no more than its pages.
DEVICE u32 keys_of(const i32* lengths, u32 sequence, u32 pages) {
  const u32 length = lengths[sequence] > 0 ? lengths[sequence] : 0;
  return length < pages * PAGE ? length : pages * PAGE;
}

// How many of them a token sees.
DEVICE u32 seen_by(u32 token, u32 queries, u32 length) {
  const u32 seen = !CAUSAL ? length : length + token + 1 > queries ? length + token + 1 - queries : 0;
  return seen < length ? seen : length;
}

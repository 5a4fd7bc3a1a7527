// A tile is found by walking the sequences in device data, so that a grid of the most tiles that
// there can be serves every division of the rows among them.
enum { PAGE = 16 };

struct Tile {
  u32 sequence, at, of;
  // What its sequence brings, where that starts, and the keys; a block table holds no more than
  // those of its pages.
  u32 queries, length;
  i32 start;
};

// The tile of this number among those of EACH query rows of the sequences that bring fewest to
// most tokens and have shortest to longest keys; false past the last, with how far past it as `at`.
// Thirty-two sequences at a time, by their number of tiles; all that is read of them comes at once
// with their true count.
template <int EACH>
DEVICE bool find_tile(Tile& found, u32 number, const i32* lengths, const i32* starts, const i32* query_lengths,
                      const i32* count, u32 sequences, u32 pages, u32 fewest, u32 most, u32 shortest = 0, u32 longest = 0xffffffffu) {
  const u32 lane = threadIdx.x % 32, real = *count;
  u32 sequence = 0;
  do {
    const u32 mine = sequence + lane;
    const bool there = mine < sequences;
    const i32 n = there ? query_lengths[mine] : 0, start = there ? starts[mine] : 0, keys = there ? lengths[mine] : 0;
    const u32 length = keys > 0 ? keys : 0;
    const bool in_reach = length >= shortest && length <= longest;
    const bool counts = there && mine < real && n > 0 && (u32)n >= fewest && (u32)n <= most && in_reach;
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
      found.queries = __shfl_sync(0xffffffffu, (u32)n, which);
      found.start = __shfl_sync(0xffffffffu, start, which);
      found.length = __shfl_sync(0xffffffffu, length < pages * PAGE ? length : pages * PAGE, which);
      return true;
    }
    number -= __shfl_sync(0xffffffffu, upto, 31);
    sequence += 32;
  } while (sequence < sequences && sequence < real);
  found.at = number;
  return false;
}

// Keys by their positions.
struct Range { u32 from, to; };

// How many keys a token sees.
DEVICE u32 seen_by(u32 token, u32 queries, u32 length) {
  const u32 seen = !CAUSAL ? length : length + token + 1 > queries ? length + token + 1 - queries : 0;
  return seen < length ? seen : length;
}
#if SLIDING

// The first key that a token sees, of WINDOW up to its own.
DEVICE u32 seen_from(u32 token, u32 queries, u32 length) {
  const u32 seen = seen_by(token, queries, length);
  return seen > WINDOW ? seen - WINDOW : 0;
}
#endif
#if SINKS

// A sink beside scores, which are powers of two.
DEVICE float sink_score(SINK x) { return widen(x) * 1.44269504f; }
#endif
#if CAPPED

// Scores as shares of their cap: tanh, by the powers that weigh scores.
DEVICE float share_of_cap(float x) { return 1.0f - quotient(2.0f, power_of_two(x * 2.88539008f) + 1.0f); }
#endif

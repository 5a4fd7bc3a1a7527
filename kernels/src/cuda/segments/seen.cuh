// Which keys a query sees, and where they lie: one after the other.
enum { PLACE = 1 };

struct Keys { u32 start, length; };

// The keys of a tile's segment that lie in k and v.
DEVICE Keys keys_in(const Tile& tile, const i32* key_starts, u32 key_rows, u32 = MOST_PAGES) {
  const i32 start = key_starts[tile.sequence];
  const u32 first = start < 0 ? key_rows : (u32)start, held = first < key_rows ? key_rows - first : 0;
  return {first, tile.length < held ? tile.length : held};
}

// The row of the key at a position, and how many of `left` keys lie there.
DEVICE u32 place_of_keys(u32& there, const Keys& keys, u32 position, u32 left) {
  there = left;
  return left ? keys.start + position : 0;
}

// The last query stands at the position of the last key; what is past it sees what it sees.
DEVICE Range keys_seen_by(u32 token, u32 queries, u32 length) {
  const i64 position = (i64)length - queries + (token < queries ? token : queries - 1);
  Range seen = {0, length};
  if (CAUSAL) seen.to = position < 0 ? 0 : (u32)position + 1;
  if (WINDOWED) {
    const i64 past = position + WINDOW + 1, before = position - WINDOW;
    if (past < (i64)seen.to) seen.to = past < 0 ? 0 : (u32)past;
    if (before > 0) seen.from = before < (i64)seen.to ? (u32)before : seen.to;
  }
  return seen;
}

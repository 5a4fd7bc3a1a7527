// Which keys a query sees. MOST_PAGES makes `find_tile` take lengths as they are.
enum { MOST_PAGES = 0x0fffffff };

struct Range { u32 from, to; };
struct Keys { u32 start, length; };

// The keys of a tile's segment that lie in k and v.
DEVICE Keys keys_in(const Tile& tile, const i32* key_starts, u32 key_rows) {
  const i32 start = key_starts[tile.sequence];
  const u32 first = start < 0 ? key_rows : (u32)start, held = first < key_rows ? key_rows - first : 0;
  return {first, tile.length < held ? tile.length : held};
}

// The last query stands at the position of the last key.
DEVICE Range keys_seen_by(u32 token, u32 queries, u32 length) {
  const i64 position = (i64)length - queries + token;
  Range seen = {0, length};
  if (CAUSAL) seen.to = position < 0 ? 0 : (u32)position + 1;
  if (WINDOWED) {
    const i64 past = position + WINDOW + 1, before = position - WINDOW;
    if (past < (i64)seen.to) seen.to = past < 0 ? 0 : (u32)past;
    if (before > 0) seen.from = before < (i64)seen.to ? (u32)before : seen.to;
  }
  return seen;
}

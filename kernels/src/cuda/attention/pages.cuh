// Where hopper.cu finds the keys of a sequence: in pages of a pool, named by a table.
enum { PLACE = PAGE };

struct Keys {
  const i32* table;
  u64 rows;
  u32 length;
};

DEVICE Keys keys_in(const Tile& tile, const i32* tables, u64 rows, u32 pages) {
  return {tables + (u64)tile.sequence * pages, rows, tile.length};
}

// The page of the key at a position, and how many of `left` keys lie in it.
DEVICE u32 place_of_keys(u32& there, const Keys& keys, u32 position, u32 left) {
  const i32 page = left ? keys.table[position / PAGE] : -1;
  const u64 at = (u64)(u32)page * PAGE, held = page >= 0 && at < keys.rows ? keys.rows - at : 0;
  there = (u32)(left < held ? left : held);
  return there ? page : 0;
}

#if SLIDING
DEVICE Range keys_seen_by(u32 token, u32 queries, u32 length) { return {seen_from(token, queries, length), seen_by(token, queries, length)}; }
#else
DEVICE Range keys_seen_by(u32 token, u32 queries, u32 length) { return {0, seen_by(token, queries, length)}; }
#endif

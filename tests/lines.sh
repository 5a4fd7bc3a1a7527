#!/usr/bin/env bash
# Counts the lines of code of each crate, and of all, at HEAD or at another commit:
#   tests/lines.sh [COMMIT]
# Code is what a user builds, in Rust and CUDA: without blanks, comments, tests, benches and examples, and
# without `testing/`, which only tests depend on. A file is a test's by its name or folder, or when a
# `#[cfg(test)] mod NAME;` makes it so; `#[cfg(test)] mod NAME { .. }` ends with the brace in the first column.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-HEAD}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git archive "$commit" | tar -x -C "$tree"
cd "$tree"
find . \( -name '*.rs' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' \) -type f \
  | grep -vE '^\./testing/|/(tests|benches|examples|fixtures)/|^\./docs/|/(tests|[a-z_]*_tests)\.rs$' \
  | sed 's|^\./||' | sort > files
# Modules that only tests have: `NAME.rs` beside the file that says so, or below its folder.
xargs -a files awk '
  /^ *#\[cfg\((test|all\(test.*)\)\]/ { test = 1; next }
  test && /^ *(#\[|\/\/)/ { if (match($0, /path = "[^"]*"/)) path = substr($0, RSTART + 8, RLENGTH - 9); next }
  test && match($0, /^ *(pub(\([a-z]*\))? )?mod [a-z_0-9]+;/) {
    name = $0; sub(/.*mod /, "", name); sub(/;.*/, "", name)
    folder = FILENAME; sub(/[^\/]*$/, "", folder)
    own = FILENAME; sub(/\.rs$/, "/", own)
    if (path != "") print folder path
    else { print folder name ".rs"; print folder name "/"; print own name ".rs"; print own name "/" }
  }
  { test = 0; path = "" }' > tests_only
awk -v list=tests_only '
  BEGIN { while ((getline line < list) > 0) if (line ~ /\/$/) folders[line]; else only[line] }
  { for (f in folders) if (index($0, f) == 1) next; if (!($0 in only)) print }' files > code
xargs -a code awk '
  FNR == 1 { crate = FILENAME; sub(/\/.*/, "", crate); comment = 0; test = 0; inside = 0 }
  inside { if (/^}/) inside = 0; next }
  comment { if (/\*\//) comment = 0; next }
  /^[ \t]*$/ || /^[ \t]*\/\// { next }
  /^[ \t]*\/\*/ { if (!/\*\//) comment = 1; next }
  /^#\[cfg\(test\)\]/ { test = 1; next }
  test && /^#\[/ { next }
  test && /^(pub(\([a-z]*\))? )?mod .*{$/ { test = 0; inside = 1; next }
  test && /;$/ { test = 0; next }
  { test = 0; lines[crate]++; all++ }
  END { for (crate in lines) printf "%7d %s\n", lines[crate], crate | "sort -rn"; close("sort -rn"); printf "%7d all\n", all }'

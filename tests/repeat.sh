#!/usr/bin/env bash
# Runs the README's test command so many times, half of them alone and half with every core kept busy: two at
# a time, beside as many loops as there are cores, which take what the two leave:
#   tests/repeat.sh [--clone] [RUNS]        # 20 by default
# With --clone they run in a new clone of what is committed here, built from nothing, as who gets the
# repository has it. Temporary files are in memory where there is room (tests/temporary.sh). A run that takes
# longer than an hour is ended and has failed. A line a run, and the names of the tests that failed; the exit
# code is 1 if any did.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=$(mktemp -d) clone='' loops=()
TMPDIR=$(tests/temporary.sh)
export TMPDIR
calm() {
  [ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null
  loops=()
}
trap 'calm; rm -rf "$TMPDIR"; [ -z "$clone" ] || rm -rf "$clone"' EXIT
if [ "${1:-}" = --clone ]; then
  shift
  clone=$(mktemp -d -p "$(dirname "$logs")")
  git clone --quiet . "$clone" && cd "$clone" || exit 1
  unset CARGO_TARGET_DIR
fi
runs=${1:-20}
[[ $runs =~ ^[0-9]+$ ]] || { echo "tests/repeat.sh: $runs is no number of runs; see its head" >&2; exit 2; }
cargo test --workspace --no-run --quiet || exit 1
run() {
  local log=$logs/$1.log started=$SECONDS result=ok
  timeout --kill-after=60 3600 cargo test --workspace --no-fail-fast >"$log" 2>&1
  case $? in
    0) ;;
    124 | 137) result=ENDLESS ;;
    *) result=FAILED ;;
  esac
  printf '%2d of %d, %-5s  %-7s  %4d s  %d tests\n' "$1" "$runs" "$2" "$result" $((SECONDS - started)) \
    "$(grep -cE '^test .* \.\.\. ok$' "$log")"
  [ $result = ok ] && return
  grep -E '^test .* \.\.\. FAILED$|^test .* has been running|^error' "$log" | sort -u
  echo "    $log"
  return 1
}
failed=0
for ((number = 1; number <= runs; number++)); do
  # Of each four the last two run together.
  if ((number % 4 != 3)); then
    run "$number" quiet || failed=1
    continue
  fi
  for _ in $(seq "$(nproc)"); do
    nice -n 19 bash -c 'while :; do :; done' &
    loops+=($!)
  done
  run "$number" busy & first=$!
  second=0
  if ((number < runs)); then
    number=$((number + 1))
    run "$number" busy & second=$!
  fi
  wait "$first" || failed=1
  ((second == 0)) || wait "$second" || failed=1
  calm
done
exit $failed

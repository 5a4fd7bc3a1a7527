#!/usr/bin/env bash
# Runs the README's test command so many times, every second one beside as many busy loops as there are cores:
#   tests/repeat.sh [--clone] [RUNS]        # 20 by default
# With --clone they run in a new clone of what is committed here, built from nothing, as who gets the
# repository has it. A run that takes longer than an hour is ended and has failed. A line a run, and the names
# of the tests that failed; the exit code is 1 if any did.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=$(mktemp -d) clone='' busy=()
calm() {
  [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null
  wait "${busy[@]}" 2>/dev/null
  busy=()
}
trap 'calm; [ -z "$clone" ] || rm -rf "$clone"' EXIT
if [ "${1:-}" = --clone ]; then
  shift
  clone=$(mktemp -d)
  git clone --quiet . "$clone" && cd "$clone" || exit 1
  unset CARGO_TARGET_DIR
fi
runs=${1:-20}
[[ $runs =~ ^[0-9]+$ ]] || { echo "tests/repeat.sh: $runs is no number of runs; see its head" >&2; exit 2; }
cargo test --workspace --no-run --quiet || exit 1
failed=0
for ((run = 1; run <= runs; run++)); do
  how=quiet
  if ((run % 2 == 0)); then
    how=busy
    for _ in $(seq "$(nproc)"); do
      (while :; do :; done) &
      busy+=($!)
    done
  fi
  log=$logs/$run.log started=$SECONDS result=ok
  timeout --kill-after=60 3600 cargo test --workspace --no-fail-fast >"$log" 2>&1
  case $? in
    0) ;;
    124 | 137) result=ENDLESS failed=1 ;;
    *) result=FAILED failed=1 ;;
  esac
  calm
  printf '%2d of %d, %-5s  %-7s  %4d s  %d tests\n' "$run" "$runs" "$how" "$result" $((SECONDS - started)) \
    "$(grep -cE '^test .* \.\.\. ok$' "$log")"
  [ $result = ok ] || { grep -E '^test .* \.\.\. FAILED$|^test .* has been running|^error' "$log" | sort -u; echo "    $log"; }
done
exit $failed

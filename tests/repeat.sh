#!/usr/bin/env bash
# Runs the README's test command so many times, every second one beside as many busy loops as there are cores:
#   tests/repeat.sh [RUNS]        # 20 by default
# A line a run, and the names of the tests that failed; the exit code is 1 if any did.
set -uo pipefail
cd "$(dirname "$0")/.."
runs=${1:-20}
logs=$(mktemp -d)
busy=()
calm() {
  [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null
  wait "${busy[@]}" 2>/dev/null
  busy=()
}
trap calm EXIT
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
  cargo test --workspace --no-fail-fast >"$log" 2>&1 || { result=FAILED failed=1; }
  calm
  printf '%2d of %d, %-5s  %-6s  %4d s  %d tests\n' "$run" "$runs" "$how" "$result" $((SECONDS - started)) \
    "$(grep -cE '^test .* \.\.\. ok$' "$log")"
  [ $result = ok ] || { grep -E '^test .* \.\.\. FAILED$|^error' "$log" | sort -u; echo "    $log"; }
done
exit $failed

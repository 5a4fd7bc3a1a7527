#!/usr/bin/env bash
# The random tests, N times as many of each as `cargo test` runs (10 unless given): for a night,
# not for every change. What follows N selects tests, as after `cargo test --`:
#   tests/soak.sh 100 random_steps
# 10 is 10,000 random steps of each mode, with every check on, compare too:
#   tests/soak.sh 10 cpu::random
# Any number above 1 holds dispatch against the oracle at every number of tokens up to 512, of sequences and of
# rows, in every mode, with padding and without:
#   tests/soak.sh 2 dispatch::
# 2 is a failure at every capture, replay, launch and wait, the kinds in turn, and 3 each kind at each of
# them; PIECEWISE_SHARD=0/8 takes an eighth:
#   tests/soak.sh 3 recovery_cpu
# Any number above 1 damages every byte of an entry of the cache:
#   tests/soak.sh 2 damaged_entries
# Or 50,000 requests and two minutes at least against the server of the last build:
#   tests/soak.sh server
# Or 200 random kills and restarts of workers and front ends:
#   tests/soak.sh worker
# Or each attack that is known, ten seconds long, with the others' waits held by the clock:
#   tests/soak.sh abuse
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = server ]; then
  exec python3 tests/server/load.py --seconds 120 --requests 50000 --longest 16
fi
if [ "${1:-}" = abuse ]; then
  PYTHONPATH=$(.ci/install-openai)
  export PYTHONPATH
  exec python3 tests/server/siege.py --seconds 10 "${@:2}"
fi
if [ "${1:-}" = worker ]; then
  PIECEWISE_VLLM_RS=$(.ci/install-vllm-rs)
  export PIECEWISE_VLLM_RS
  exec python3 tests/worker/kills.py "${@:2}"
fi
export PIECEWISE_SOAK=${1:-10}
exec cargo test --workspace --lib --test ir --test passes --test library --test device_suite -- --nocapture "${@:2}"

#!/usr/bin/env bash
# Random input for so many seconds each (60 unless given) against bodies of HTTP, chat templates, structures, replies
# with tool calls, frames of ZMTP and a worker's messages; what follows selects tests, as after `cargo test --`:
#   tests/fuzz.sh 600
#   tests/fuzz.sh 60 fuzz::every_body
# What fails is shown as small as it gets. A case that takes two minutes ends it, and so do 3 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIECEWISE_FUZZ_SECONDS=${1:-60}
only=("${@:2}")
exec cargo test --workspace --lib --test server -- --nocapture --test-threads 1 "${only[@]:-fuzz::}"

#!/usr/bin/env bash
# Builds what a machine with a GPU and without Rust runs, into a folder that git ignores:
#   tests/gpu/pack.sh [FOLDER]      # .gpu by default
# Carry the folder there and start FOLDER/run.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-.gpu}

# The paths of the executables that cargo builds for these arguments, by target name.
built() {
  cargo "$@" --release --message-format json-render-diagnostics |
    python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        print(message["target"]["name"], message["executable"])
'
}

rm -rf "$out"
mkdir -p "$out/bin" "$out/examples" "$out/tests"
while read -r name path; do
  [[ $path == *.so ]] || strip -o "$out/bin/$name" "$path"
done < <(
  built test --no-run -p piecewise -p piecewise-backend -p piecewise-cli \
    --test program --test device_suite --test backend
  built build -p piecewise --example custom_op
  # The folder has the dependencies that both packages share.
  built build --manifest-path examples/outside/Cargo.toml --locked --target-dir "${CARGO_TARGET_DIR:-target}"
)
for name in piecewise program device_suite backend custom_op batches; do
  [ -x "$out/bin/$name" ] || { echo "$name was not built" >&2; exit 1; }
done
cp -r examples/tiny-qwen3 "$out/examples/"
cp -r tests/fixtures "$out/tests/"
cp tests/gpu/{run.sh,rows.py,figures.py,figures.json,host.py,modes.py,cache.py,ledger.py,account.py,peer.py,serve.py,start.py} benches/torch/decode.py \
  examples/outside/outside.toml "$out/"
cp -r examples/outside/model "$out/outside"
PIECEWISE_CUDA_LIBRARY_DIRS=${PIECEWISE_CUDA_LIBRARY_DIRS:-$(.ci/install-nvrtc)} \
  python3 tests/gpu/cache.py pack "$out/bin/piecewise" "$out"
git rev-parse HEAD >"$out/COMMIT"
# run.sh unpacks it.
tar -C "$out" -cf - bin | xz -T0 --lzma2=preset=4,dict=192MiB >"$out/bin.tar.xz"
rm -r "$out/bin"
du -sm "$out" | {
  read -r size _
  echo "$out: $size MiB"
  [ "$size" -lt 60 ] || { echo "more than 60 MiB" >&2; exit 1; }
}

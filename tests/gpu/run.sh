#!/usr/bin/env bash
# Runs what tests/gpu/pack.sh packed, on a machine with a GPU:
#   run.sh [-p FOLDER] [-l LOGS] [correctness] [traces] [ledger] [sanitizer] [cache] [bench] [starts] [modes] [peer] [account] [serve]
# correctness takes some 11 minutes, traces under 1, the cache, serve and starts under 3, bench, modes, peer and account under 10.
# starts makes a checkpoint of 16.4 GB in TMPDIR, and takes kernel packs from PIECEWISE_PACK_DIR (.ci/release).
# serve wants vLLM's front end (.ci/install-vllm-rs) in PIECEWISE_VLLM_RS.
# What traces writes to LOGS is read elsewhere, by Perfetto's protos:
#   tests/perfetto/trace.py --files LOGS/trace_MODE.pftrace LOGS/trace_MODE.jsonl
# FOLDER is where this script lies unless named; without a section, all run. The logs go to LOGS
# (a temporary folder by default), a table with the device in every row comes last, and the exit
# code is 1 where a row failed.
set -uo pipefail
pack=$(cd "$(dirname "$0")" && pwd)
logs=
while getopts p:l: flag; do
  case $flag in
    p) pack=$(cd "$OPTARG" && pwd) || exit 2 ;;
    l) mkdir -p "$OPTARG" && logs=$(cd "$OPTARG" && pwd) || exit 2 ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
sections=("$@")
[ ${#sections[@]} -gt 0 ] || sections=(correctness traces ledger sanitizer cache bench starts modes peer account serve)
logs=${logs:-$(mktemp -d)}
cd "$pack" || exit 2
[ -d bin ] || tar -xJf bin.tar.xz || exit 2

export PIECEWISE_BIN=$pack/bin/piecewise
export PIECEWISE_TEST_DEVICE=${PIECEWISE_TEST_DEVICE:-cuda}
export PIECEWISE_REQUIRE_GPU=1
device=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null || echo "no GPU")
model=examples/tiny-qwen3
rows=()
failed=0

# row NAME RESULT SECONDS DETAIL
row() { rows+=("$(printf '%-34s %-7s %7s  %s  %s' "$1" "$2" "$3" "$device" "$4")"); }

# run NAME SECONDS COMMAND...: the log in $logs/NAME.log, a line of it that tells in $detail.
run() {
  local name=$1 limit=$2 log=$logs/$1.log start=$EPOCHREALTIME result=ok
  shift 2
  timeout "$limit" "$@" >"$log" 2>&1
  local code=$?
  [ $code -eq 0 ] || { result=FAILED; failed=1; }
  [ $code -ne 124 ] || result=TIMEOUT
  local seconds
  seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }")
  detail=$(grep -E "^test result:|^generated " "$log" | tail -n 1 |
    sed -E 's/^test result: [A-Za-z]+\. //; s/; [0-9]+ ignored.*//; s/^generated +//')
  if [ $result != ok ]; then
    echo "== $name: $result ($code)"
    tail -n 40 "$log" | cut -c 1-600
  fi
  row "$name" $result "$seconds" "$detail"
}

# same NAME PATTERN LOG LOG: fails unless both logs have text of the pattern, and no two texts differ.
same() {
  local name=$1 pattern=$2 result=ok first second
  first=$(grep -oE "$pattern" "$logs/$3.log" | sort -u)
  second=$(grep -oE "$pattern" "$logs/$4.log" | sort -u)
  [[ -n $first && $first == "$second" && $first != *$'\n'* ]] || { result=FAILED; failed=1; }
  row "$name" $result "" "$3: ${first:-nothing}; $4: ${second:-nothing}"
}

correctness() {
  run doctor 60 bin/piecewise doctor --require-gpu
  cat "$logs/doctor.log"
  run first_token 60 bin/piecewise generate --model $model --device "$PIECEWISE_TEST_DEVICE" --tune off \
    --prompt "def __init__(self" --max-tokens 16 --graph-mode none --stats
  run cuda_device 120 bin/backend cuda_device::
  for test in the_top_logits_equal_the_reference bf16_logits_are_close_to_f32 \
    greedy_tokens_equal_the_reference_in_every_mode_and_size_list \
    greedy_tokens_equal_the_reference_with_poison_and_at_every_level; do
    run "$test" 300 bin/program --exact "tiny_model::$test"
  done
  run serve_tokens 60 bin/program --exact serve::a_server_answers_and_ends_when_it_is_told_to
  run nvtx 60 bin/program nvtx:: --show-output
  run timeline 60 bin/program --exact bench::a_timeline_has_every_launch_in_the_order_of_the_step
  run without 60 bin/program --exact bench::prompts_are_measured_alone_and_steps_without_some_launches
  run model_families 180 bin/program model_families::
  run encoders 400 bin/program equals_its_reference
  run generate_images 180 bin/program generate_images::tokens_after_an_image_equal_the_reference
  run images_in_prompts 120 bin/program generate_images::every_prompt_has_the_images_where_it_says
  run encoder_mixes 200 bin/device_suite encoder_mixes:: --show-output
  run encoder_shapes 240 bin/device_suite encoder_shapes::
  run custom_op 60 bin/custom_op --device "$PIECEWISE_TEST_DEVICE"
  run outside_cpu 120 bin/batches --settings outside.toml --model outside
  run outside 240 bin/batches --settings outside.toml --model outside --device "$PIECEWISE_TEST_DEVICE"
  same outside_tokens "[1-9][0-9]* tokens [0-9a-f]{16}" outside_cpu outside
  run cuda_regions 120 bin/backend cuda_regions::
  run cuda_segments 300 bin/backend cuda_segments:: --show-output --test-threads=1
  run cuda_prompts 120 bin/backend cuda_prompts:: --show-output --test-threads=1
  # Free bytes are the whole device's, so that this one runs alone.
  local alone=cuda::a_suspended_model_gives_its_memory_back
  run suspended 60 bin/device_suite --exact $alone --show-output
  run exhaustion 90 bin/device_suite exhaustion::cuda --test-threads=1 --show-output
  run refusals 60 bin/device_suite refusals::cuda --test-threads=1 --show-output
  # What is read too early must be read while a kernel of a fifth of a second runs.
  run missing_waits 60 bin/device_suite missing_waits::cuda --test-threads=1 --show-output
  run background 60 bin/device_suite --exact cuda::captures_between_steps_change_no_bit --show-output
  # A host that is busy between two marks is time in none of a step's parts.
  run parts_of_steps 60 bin/device_suite traces::cuda --show-output
  run device_suite 280 bin/device_suite cuda programmatic:: --skip $alone \
    --skip exhaustion:: --skip refusals:: --skip missing_waits:: --skip captures_between --skip traces:: --show-output
  grep -E "^cuda: arena and states" "$logs/suspended.log" || true
  grep -E "^cuda" "$logs/exhaustion.log" "$logs/refusals.log" "$logs/background.log" \
    "$logs/parts_of_steps.log" || true
  grep -E "mixes compared" "$logs/encoder_mixes.log" || true
  grep -hE "^cuda: " "$logs/cuda_segments.log" "$logs/cuda_prompts.log" || true
  grep -E "^cuda.*(compared|random graphs|in turn|another padding|opened anew|to make it|allocations of)" "$logs/device_suite.log" || true
}

# The prompts of tests/perfetto/trace.py, traced in every mode.
traces() {
  local mode
  for mode in none piecewise full full_decode_only full_and_piecewise; do
    run "trace_$mode" 60 bin/piecewise generate --model $model --device "$PIECEWISE_TEST_DEVICE" \
      --tune off --no-cache --graph-mode $mode --max-tokens 24 --ignore-eos \
      --prompt "def __init__(self" --prompt "import numpy" --stats \
      --trace "$logs/trace_$mode.pftrace" --iteration-log "$logs/trace_$mode.jsonl"
  done
}

# Each mode of the tiny model under each tool of compute-sanitizer, the tools beside each other. A
# tool that says nothing at its end has not checked: its row fails like one with errors.
sanitizer() {
  local tools=(memcheck initcheck racecheck) mode tool log code result found start long
  local flags=(--model $model --device "$PIECEWISE_TEST_DEVICE" --tune off --dtype bf16 --max-tokens 4
    --ignore-eos --max-num-seqs 2 --decode-batch-sizes 1,2)
  local short=(--max-num-tokens 16 --max-seq-len 64 --capture-num-tokens 2,16)
  # Without the library every product of more rows is in tiles. racecheck fails inside itself there.
  local tiles=(--max-num-tokens 320 --max-seq-len 512 --capture-num-tokens 64,320 --batch-invariant)
  long=$(printf 'def f%d(x): return x + 1\n' {1..24})
  if ! command -v compute-sanitizer >/dev/null; then
    PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer
  fi
  for mode in none piecewise full; do
    start=$EPOCHREALTIME
    local children=() kinds=(1 2)
    [ $mode != full ] || kinds+=(long)
    for tool in "${tools[@]}"; do
      for prompts in "${kinds[@]}"; do
        local given=("${short[@]}" --prompt "def __init__(self")
        [ "$prompts" != 2 ] || given+=(--prompt "import numpy as np and then")
        [ "$prompts" != long ] || given=("${tiles[@]}" --prompt "$long")
        [ "$prompts $tool" != "long racecheck" ] || continue
        timeout 150 compute-sanitizer --tool "$tool" --error-exitcode 86 --print-limit 20 \
          bin/piecewise generate "${flags[@]}" "${given[@]}" --graph-mode "$mode" \
          >"$logs/${tool}_${mode}_$prompts.log" 2>&1 &
        children+=($!)
      done
    done
    for tool in "${tools[@]}"; do
      for prompts in "${kinds[@]}"; do
        [ "$prompts $tool" != "long racecheck" ] || continue
        log=$logs/${tool}_${mode}_$prompts.log
        wait "${children[0]}"
        code=$?
        children=("${children[@]:1}")
        found=$(grep -aoE "(ERROR|RACECHECK) SUMMARY: .*" "$log" | tail -n 1)
        result=ok
        case $found in
          "ERROR SUMMARY: 0 errors"* | "RACECHECK SUMMARY: 0 hazards"*) ;;
          *) result=FAILED ;;
        esac
        [ $code -eq 0 ] || result=FAILED
        [ $code -ne 124 ] || result=TIMEOUT
        if [ $result != ok ]; then
          failed=1
          echo "== $tool, $mode, $prompts prompts: $result ($code)"
          grep -aE "^=========" "$log" | head -n 60 | cut -c 1-300
          tail -n 5 "$log" | cut -c 1-300
        fi
        row "${tool}_${mode}_$prompts" $result \
          "$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }")" "${found:-no summary}"
      done
    done
  done
}

# rows_of NAME SECONDS COMMAND...: the rows that it prints: what, result and text, by tabs.
rows_of() {
  local name=$1 limit=$2 what result text
  shift 2
  timeout "$limit" "$@" >"$logs/$name.rows" 2>"$logs/$name.log"
  local code=$?
  if [ $code -ne 0 ]; then
    failed=1
    tail -n 20 "$logs/$name.log"
    [ $code -eq 1 ] || row "$name" FAILED "" "exit status $code"
  fi
  while IFS=$'\t' read -r what result text; do
    row "$what" "$result" "" "$text"
  done <"$logs/$name.rows"
}

# Free bytes are the whole device's here, too.
ledger() { rows_of ledger 90 python3 ledger.py "$PIECEWISE_BIN"; }

modes() {
  local model reports=()
  for model in qwen3-0.6b llama-3.2-1b qwen3-8b; do
    measured "modes_$model" 150 bin/piecewise bench --preset $model --device "$PIECEWISE_TEST_DEVICE" \
      --graph-mode none,piecewise,full --batch 1,8,32,128 --context 512 --mixed 64,512,2048 --steps 40 \
      --mixed-steps 20 --tune measure --tune-seconds 15 --no-cache --json
    reports+=("$logs/modes_$model.json")
  done
  rows_of modes 20 python3 modes.py "${reports[@]}"
}

# It compiles some rows beside each other, none while one is timed.
peer() { rows_of peer 590 python3 peer.py "$PIECEWISE_BIN"; }

account() { rows_of account 500 python3 account.py "$PIECEWISE_BIN"; }

cache() { rows_of cache 240 python3 cache.py run "$PIECEWISE_BIN" "$pack"; }

serve() {
  [ -n "${PIECEWISE_VLLM_RS:-}" ] || { row serve none "" "PIECEWISE_VLLM_RS names no load generator"; return; }
  rows_of serve 360 python3 serve.py "$PIECEWISE_BIN" "$PIECEWISE_VLLM_RS" $model
}

# measured NAME SECONDS COMMAND...: the rows of the JSON that it prints, in $logs/NAME.json.
measured() {
  local name=$1 limit=$2 json=$logs/$1.json start=$EPOCHREALTIME result=ok what text
  shift 2
  timeout "$limit" "$@" >"$json" 2>"$logs/$name.log"
  local code=$?
  local seconds
  seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }")
  if ! python3 "$pack/rows.py" "$json" >"$logs/$name.rows" 2>>"$logs/$name.log"; then
    [ $code -ne 0 ] || code=1
  fi
  [ $code -eq 0 ] || result=FAILED
  [ $code -ne 124 ] || result=TIMEOUT
  if [ $result != ok ]; then
    echo "== $name: $result ($code)"
    tail -n 40 "$logs/$name.log" | cut -c 1-600
    failed=1
  fi
  row "$name" $result "$seconds" ""
  while IFS=$'\t' read -r what result text; do
    row "$what" "$result" "" "$text"
  done <"$logs/$name.rows"
}

bench() {
  local model
  for model in qwen3-0.6b qwen3-8b; do
    measured "bench_$model" 110 bin/piecewise bench --preset $model \
      --device "$PIECEWISE_TEST_DEVICE" --batch 1,8 --context 512 --mixed 64,300,512 \
      --steps 100 --mixed-steps 15 --json
  done
  # The rows of the file of figures, in its mode and unmeasured, then beside it; and by measured choice,
  # beside those.
  local kept=() chosen=()
  for model in qwen3-0.6b llama-3.2-1b qwen3-8b; do
    local steps=(--preset $model --device "$PIECEWISE_TEST_DEVICE" --batch 1,8,32,128 --context 512
      --graph-mode full --steps 40 --mixed-steps 30 --prefill 300,512,480+32,1300,2048,2016+32 --json)
    measured "rows_$model" 60 bin/piecewise bench "${steps[@]}" --tune off
    measured "chosen_$model" 90 bin/piecewise bench "${steps[@]}" --tune measure --tune-seconds 20 --no-cache
    kept+=("$logs/rows_$model.json")
    chosen+=("$logs/chosen_$model.json")
  done
  # By itself, so that the others keep their sizes.
  measured prompt_qwen3-8b 60 bin/piecewise bench --preset qwen3-8b --device "$PIECEWISE_TEST_DEVICE" \
    --graph-mode full --tune off --mixed-steps 10 --prefill 8192 --max-seq-len 8704 --json
  rows_of figures 20 python3 figures.py compare figures.json "${kept[@]}" "$logs/prompt_qwen3-8b.json"
  printf '{"device": "%s", "rows": []}' "$device" >"$logs/unmeasured.json"
  if python3 figures.py keep "$logs/unmeasured.json" "${kept[@]}"; then
    rows_of measured_choice 20 python3 figures.py compare --slower 0.01 "$logs/unmeasured.json" "${chosen[@]}"
  fi
  # A host is busy for a while and then is not.
  local turn hosts=()
  for turn in 1 2 3; do
    measured "host_$turn" 40 bin/piecewise bench --preset qwen3-0.6b --device "$PIECEWISE_TEST_DEVICE" \
      --batch 1,128 --context 512 --max-seq-len 40960 --graph-mode full,piecewise --tune off --steps 60 --json
    hosts+=("$logs/host_$turn.json")
  done
  rows_of host 20 python3 host.py "${hosts[@]}"
  measured start_qwen3-8b 80 bin/piecewise bench --preset qwen3-8b \
    --device "$PIECEWISE_TEST_DEVICE" --startup --json
}

starts() { rows_of starts 300 python3 start.py "$PIECEWISE_BIN"; }

for section in "${sections[@]}"; do
  case $section in
    correctness | traces | ledger | sanitizer | cache | bench | starts | modes | peer | account | serve) $section ;;
    *) echo "no section \`$section\`; there are correctness, traces, ledger, sanitizer, cache, bench, starts, modes, peer, account and serve" >&2; exit 2 ;;
  esac
done
printf '\n%-34s %-7s %7s  %s\n' what result seconds "device, detail"
printf '%s\n' "${rows[@]}"
exit $failed

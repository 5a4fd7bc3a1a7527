#!/usr/bin/env python3
"""Texts through sentence-transformers and through piecewise on the CPU, in one run.

    python3 benches/torch/encode.py --model MINILM_FOLDER --ours target/release/piecewise-bench-encoder

1,000 sentences of 8, 16, 32, 64 and 128 tokens, in a fixed order; both sides read text and give
normalized embeddings in f32, with as many threads as --threads says. The two take turns, chunk by
chunk, so that what else the machine does hits both; each chunk counts by the least of its rounds.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", required=True)
parser.add_argument("--ours", required=True)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--sentences", type=int, default=1000)
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch  # noqa: E402
import sentence_transformers  # noqa: E402

torch.set_num_threads(args.threads)
torch.manual_seed(0)
peer = sentence_transformers.SentenceTransformer(args.model, device="cpu")
tokenizer = peer.tokenizer
words = sorted(w for w in tokenizer.get_vocab() if w.isascii() and w.isalpha() and len(w) > 2)
rng = random.Random(7)
lengths = [8, 16, 32, 64, 128]
sentences = []
for i in range(args.sentences):
    # [CLS] and [SEP] are two of the tokens.
    text = " ".join(rng.choice(words) for _ in range(lengths[i % len(lengths)] - 2))
    sentences.append(text)
rng.shuffle(sentences)
counts = [len(ids) for ids in tokenizer(sentences)["input_ids"]]
assert sorted(set(counts)) == lengths, sorted(set(counts))

taskset = ["taskset", "-c", ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))[: args.threads])]
ours = subprocess.Popen(
    [*taskset, args.ours, args.model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
assert ours.stdout.readline() == "ready\n"


def run_ours(one_by_one, chunk):
    ours.stdin.write(json.dumps([one_by_one, chunk]) + "\n")
    ours.stdin.flush()
    return json.loads(ours.stdout.readline())


def run_peer(one_by_one, chunk):
    start = time.perf_counter()
    if one_by_one:
        rows = [peer.encode(text, show_progress_bar=False, normalize_embeddings=True) for text in chunk]
    else:
        rows = peer.encode(chunk, batch_size=32, show_progress_bar=False, normalize_embeddings=True)
    seconds = time.perf_counter() - start
    return seconds, [float(row[0]) for row in rows]


print(
    f"sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}, "
    f"{args.threads} threads, {args.sentences} sentences"
)
run_peer(False, sentences[:64])
run_ours(False, sentences[:64])
failed = False
for one_by_one, chunk_size, goal in [(True, 50, 1.5), (False, 250, 1.0)]:
    seconds = {"ours": 0.0, "peer": 0.0}
    furthest = 0.0
    for at in range(0, len(sentences), chunk_size):
        chunk = sentences[at : at + chunk_size]
        best = {"ours": float("inf"), "peer": float("inf")}
        for turn in range(args.rounds):
            sides = [("ours", run_ours), ("peer", run_peer)]
            rows = {}
            for name, run in sides if turn % 2 == 0 else sides[::-1]:
                took, rows[name] = run(one_by_one, chunk)
                best[name] = min(best[name], took)
            furthest = max(furthest, *(abs(a - b) for a, b in zip(rows["ours"], rows["peer"])))
        for name in seconds:
            seconds[name] += best[name]
    ratio = seconds["peer"] / seconds["ours"]
    failed |= ratio < goal or furthest > 1e-4
    what = "one at a time" if one_by_one else "batch 32"
    print(
        f"{what}: ours {seconds['ours']:.2f} s, {len(sentences) / seconds['ours']:.0f} sentences/s; "
        f"peer {seconds['peer']:.2f} s, {len(sentences) / seconds['peer']:.0f} sentences/s; "
        f"{ratio:.2f} times (goal {goal}); values differ by {furthest:.1e} at most"
    )
ours.stdin.close()
ours.wait()
sys.exit(1 if failed else 0)

"""vLLM's load generator against `piecewise serve`, beside `piecewise bench` of the same steps:

    serve.py PIECEWISE VLLM_RS TOKENIZER_FOLDER [--at-once 1,16,64,128] [--preset qwen3-8b] ..

A row for each figure: what, result and text, by tabs. What is held, of prompts of 512 ids and answers of
128: steps without prompt rows, of as many sequences as most of them have, take in the median what bench's
do, within 5% (8% at 128), and what bench's of the size do that the server pads them to is shown beside; steps
with them, of each number at once, what the same prompts beside as many decodes do, within 8%: those that come
most often, if their prompts have as many ids each, and one prompt, and as many as there is room for, that come
while all others decode; the 99th
percentile between tokens is at most 1.1 times the largest of the mixed steps at the chunk limit; the
first token at rest comes within 1.3 times the prompt's step; and the server takes at most 150 us of CPU
a token alone and 12 at 128, the engine's thread and its pool left out, whose own are shown.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

# The engine's thread, and what its device has: the driver's threads, or the CPU device's.
LEFT_OUT = ("engine", "cuda", "piecewise-cpu-")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("piecewise")
    parser.add_argument("vllm_rs")
    parser.add_argument("tokenizer", help="any: prompts are ids")
    parser.add_argument("--preset", default="qwen3-8b")
    parser.add_argument("--model", help="a folder instead of the preset")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--at-once", default="1,16,64,128")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=2048, help="the most tokens of a step")
    parser.add_argument("--threads", type=int, default=1, help="that talk to clients")
    parser.add_argument("--cpu-alone", action="store_true", help="no figures of steps, and no bench")
    parser.add_argument("--steps", type=int, default=40, help="timed steps of bench's rows")
    return parser.parse_args()


class Server:
    def __init__(self, args, source, folder):
        self.log = pathlib.Path(folder) / "steps.jsonl"
        flags = ["--device", args.device, "--tune", "off", "--max-num-seqs", "128", "--max-num-tokens", str(args.chunk)]
        flags += ["--max-seq-len", str(args.prompt + args.answer + 128), "--http-threads", str(args.threads)]
        command = [args.piecewise, "serve", *source, *flags, "--port", "0", "--no-access-log", "--iteration-log", str(self.log)]
        shown = subprocess.run([*command, "--print-config"], check=True, capture_output=True, text=True).stdout
        sizes = re.search(r"^capture_num_tokens = \[([^]]*)\]", shown, re.M)
        self.sizes = [int(size) for size in sizes[1].split(",")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])
        assert self.process.stdout.readline().strip() == "ready"

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))

    def cpu(self):
        """Seconds of CPU of the threads that serve, of them those in the kernel by its ticks, and of the
        threads that are left out, by their names."""
        found = collections.Counter()
        for thread in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            name = (thread / "comm").read_text().strip()
            seconds = int((thread / "schedstat").read_text().split()[0]) / 1e9
            if left := next((left for left in LEFT_OUT if name.startswith(left)), None):
                found[left] += seconds
            else:
                found["serves"] += seconds
                found["kernel"] += int((thread / "stat").read_text().rsplit(")", 1)[1].split()[12]) / os.sysconf("SC_CLK_TCK")
        return found

    def steps(self):
        """Those that were logged since this was last asked, once no more come."""
        deadline = time.time() + 20
        while self.metric("vllm:num_requests_running") > 0 and time.time() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        seen = getattr(self, "seen", 0)
        lines = self.log.read_text().splitlines()
        self.seen = len(lines)
        steps = (json.loads(line) for line in lines[seen:])
        return [step for step in steps if "log" not in step]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def load(args, server, at_once, folder, prompts):
    command = [args.vllm_rs, "bench", "serve", "--backend", "openai", "--port", str(server.port)]
    command += ["--dataset-name", "random", "--random-input-len", str(args.prompt), "--random-output-len", str(args.answer)]
    command += ["--prompt-token-ids", "--tokenizer", args.tokenizer, "--num-prompts", str(prompts), "--seed", str(prompts)]
    command += ["--max-concurrency", str(at_once), "--ignore-eos", "--disable-tqdm", "--no-steady-state"]
    command += ["--percentile-metrics", "ttft,tpot,itl", "--save-result", "--result-dir", folder, "--result-filename", f"{at_once}.json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads((pathlib.Path(folder) / f"{at_once}.json").read_text())
    assert result["completed"] == prompts, (result["completed"], prompts)
    return result


def beside(args, server, prompts, decodes):
    """Prompts that come together, some times, while so many others decode."""
    chance = random.Random(f"{prompts} beside {decodes}")

    def post(count, tokens):
        ids = [[chance.randrange(10, 2000) for _ in range(args.prompt)] for _ in range(count)]
        body = {"prompt": ids, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/completions", json.dumps(body).encode())
        urllib.request.urlopen(request, timeout=240).read()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        others = pool.submit(post, decodes, args.answer + 100)
        while server.metric("vllm:num_requests_running") < decodes or server.metric("vllm:num_requests_waiting"):
            time.sleep(0.02)
        for _ in range(8):
            post(prompts, 1)
        others.result()


def bench(args, source, sizes, batches, asked):
    prefill = sorted("%dx%d+%d" % key for key in asked)
    # Those that the server has for such steps; to capture all of them takes long.
    tokens = [*batches, *(prompts * each + decodes for prompts, each, decodes in asked)]
    sizes = sorted({min(size for size in sizes if size >= n) for n in tokens if n <= max(sizes)})
    command = [args.piecewise, "bench", *source, "--device", args.device, "--tune", "off", "--sampling-controls", "--json"]
    command += ["--context", str(args.prompt + args.answer // 2), "--batch", ",".join(map(str, batches)), "--steps", str(args.steps)]
    command += ["--prefill", ",".join(prefill), "--mixed-steps", "15", "--graph-mode", "full_and_piecewise"]
    command += ["--capture-num-tokens", ",".join(map(str, sizes))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.stdout.startswith("{"), run.stdout + run.stderr
    rows = {}
    for mode in json.loads(run.stdout)["modes"]:
        for row in mode["rows"]:
            if not row["failures"]:
                rows[row["tokens"], row["batch"]] = row["wall_ms"]["median"]
    return rows


def mix(step, prompt):
    """Prompts of a step, the tokens of each and decodes beside them, which bench can be asked for: of a step
    whose prompts have as many tokens each. None has more than `prompt`, so all do that come to that in all."""
    prompts = step["sequences"] - step["generation_requests"]
    if prompts < 1 or step["mode"] != "piecewise" or not step.get("wall_us"):
        return None
    if prompts > 1 and step["context_tokens"] != prompts * prompt:
        return None
    return prompts, step["context_tokens"] // prompts, step["generation_requests"]


def is_of_decodes(step):
    return not step["context_tokens"] and step.get("wall_us")


def usual_decodes(steps, most):
    """The sequences that most steps without prompt rows have, of those of more than half as many as `most`."""
    counts = collections.Counter(s["sequences"] for s in steps if is_of_decodes(s) and most / 2 < s["sequences"] <= most)
    return counts.most_common(1)[0][0] if counts else 0


def main():
    args = arguments()
    source = ["--model", args.model] if args.model else ["--preset", args.preset]
    counts = [int(n) for n in args.at_once.split(",")]
    rows = []

    def row(what, value, most, text):
        rows.append((what, "ok" if most is None or value <= most else "over"))
        print(what, rows[-1][1], text, sep="\t", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, source, folder)
        load(args, server, max(counts), folder, max(counts) + 1)
        server.steps()
        runs, mixed = {}, {}
        for at_once in counts:
            before = server.cpu(), server.metric("vllm:generation_tokens_total")
            result = load(args, server, at_once, folder, 8 if at_once == 1 else 3 * at_once)
            cpu = server.cpu()
            cpu.subtract(before[0])
            steps = server.steps()
            tokens = server.metric("vllm:generation_tokens_total") - before[1]
            runs[at_once], mixed[at_once] = (result, steps), steps
            most = {1: 150, 128: 12}.get(at_once)
            cpu = {name: 1e6 * seconds / tokens for name, seconds in cpu.items()}
            text = f"{cpu['serves']:.1f} us of CPU a token, {cpu['kernel']:.0f} of them in the kernel, {args.threads} threads; left out"
            text += "".join(f", {name}* {cpu[name]:.1f}" for name in LEFT_OUT if name in cpu)
            row(f"serve_cpu_{at_once}", cpu["serves"], most, text)
        chosen = {}
        for at_once, steps in mixed.items():
            rooms = {1, min(at_once - 1, (args.chunk - at_once) // args.prompt)} if at_once > 1 and not args.cpu_alone else ()
            for prompts in rooms:
                beside(args, server, prompts, at_once - prompts)
            steps = mixed[at_once] = steps + server.steps()
            mixes = collections.Counter(filter(None, (mix(step, args.prompt) for step in steps)))
            often = [key for key, n in mixes.most_common(2) if n >= 3]
            chosen[at_once] = sorted({*often, *((prompts, args.prompt, at_once - prompts) for prompts in rooms)})
        code = server.end()
        row("serve_ends", code, 0, f"exit code {code} after SIGTERM")
        if args.cpu_alone:
            sys.exit(any(result != "ok" for _, result in rows))
        # Where many come and go, steps seldom have all of them.
        usual = {at_once: usual_decodes(steps, at_once) for at_once, (_, steps) in runs.items()}
        # At the chunk limit: prompts alone, and beside as many decodes as there are at most.
        whole = args.chunk // args.prompt
        decodes = max(counts) - whole
        limits = [(whole, args.prompt, 0), (whole, (args.chunk - decodes) // whole, decodes)]
        asked = {(1, args.prompt, 0), *limits, *(key for keys in chosen.values() for key in keys)}
        padded = {n: min((size for size in server.sizes if size >= n), default=n) for n in usual.values()}
        rates = bench(args, source, server.sizes, sorted({*counts, *usual.values(), *padded.values()} - {0}), asked)

    def rate_of(prompts, each, decodes):
        return rates.get((prompts * each + decodes, prompts + decodes))

    prompt = rate_of(1, args.prompt, 0)
    largest = max(filter(None, (rate_of(*limit) for limit in limits)))
    for at_once, (result, steps) in runs.items():
        decodes = usual[at_once]
        plain = [s["wall_us"] / 1e3 for s in steps if is_of_decodes(s) and s["sequences"] == decodes]
        own = rates.get((decodes, decodes))
        if not (plain and own):
            row(f"serve_decode_{at_once}", 1, 0, f"no figure of {decodes} decodes: {len(plain)} steps, bench {own}")
        else:
            step = statistics.median(plain)
            text = f"{step:.3f} ms in the median of {len(plain)} steps of {decodes}, bench {own:.3f}: {step / own:.3f}"
            if padded[decodes] != decodes and (same := rates.get((padded[decodes],) * 2)):
                text += f"; padded to {padded[decodes]}, of which bench takes {same:.3f}: {step / same:.3f}"
            row(f"serve_decode_{at_once}", step / own, 1.08 if at_once >= 128 else 1.05, text)
        between, p99 = result["median_itl_ms"], result["p99_itl_ms"]
        row(f"serve_p99_{at_once}", p99 / largest, 1.1, f"{between:.3f} ms between tokens, p99 {p99:.2f}, the largest step {largest:.2f}: {p99 / largest:.3f}")
        first = result["median_ttft_ms"]
        text = f"{first:.2f} ms to the first token in the median, {result['output_throughput']:.0f} tokens/s, {result['completed']} answers"
        row(f"serve_first_{at_once}", first / prompt if at_once == 1 else 0, 1.3, text + (f"; the prompt's step {prompt:.2f}: {first / prompt:.3f}" if at_once == 1 else ""))
    for at_once, keys in chosen.items():
        for key in keys:
            what, own = "serve_mixed_%d_%dx%d+%d" % (at_once, *key), rate_of(*key)
            alike = [s["wall_us"] / 1e3 for s in mixed[at_once] if mix(s, args.prompt) == key]
            if not (alike and own):
                row(what, 1, 0, f"no figure: {len(alike)} steps, bench {own}")
                continue
            step = statistics.median(alike)
            text = f"{step:.3f} ms in the median of {len(alike)} steps, bench {own:.3f}: {step / own:.3f}"
            row(what, step / own, 1.08, text)
    sys.exit(any(result != "ok" for _, result in rows))


if __name__ == "__main__":
    main()

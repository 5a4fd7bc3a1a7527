"""Many streams at once against `piecewise serve`: random arrivals and lengths, and clients that leave.

    python3 tests/server/load.py --seconds 20
    python3 tests/server/load.py --seconds 120 --requests 50000     # tests/soak.sh
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import subprocess
import time

from harness import BINARY, FAST, GOLDEN, MODEL, ROOT, Server

LONGEST = 64
STREAMS = 256
# Kilobytes by which the process may grow once it has met a quarter of the load: of one that is long, and of
# one in whose quarter not every size has come.
LONG_GROWTH, SHORT_GROWTH = 5_000, 20_000


def offline():
    """Prompts as ids with the tokens that they get without a server, all in one batch."""
    whole = [case["prompt"] for case in GOLDEN]
    texts = [prompt[:cut] for prompt in whole for cut in (len(prompt), 7, 4)]
    # Several pages and steps long, with starts that others have too.
    shared = "\n".join(whole)
    texts += [f"{shared}\n" * times + prompt for prompt in whole for times in (1, 2)]
    flags = [flag for text in texts for flag in ("--prompt", text)]
    command = [BINARY, "generate", "--model", str(MODEL), *FAST, "--max-tokens", str(LONGEST), "--ignore-eos", "--json"]
    said = subprocess.run([*command, *flags], cwd=ROOT, check=True, capture_output=True, text=True)
    replies = [json.loads(line) for line in said.stdout.splitlines()]
    return [(reply["prompt_ids"], reply["ids"]) for reply in replies]


def cpu(server):
    """Seconds that the server's threads have computed: those that talk to clients and what they do aside, and all."""
    seconds = {"http": 0.0, "all": 0.0}
    for thread in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        name, numbers = (thread / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        user, system = numbers.split()[11:13]
        took = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        seconds["all"] += took
        seconds["http"] += took if name == "http" else 0
    return seconds


async def request(server, chance, cases, counts, longest):
    prompt, tokens = chance.choice(cases)
    length = chance.randint(1, longest)
    # Before the last token: who leaves at it has the whole answer.
    leaves = chance.randint(1, length - 1) if length > 1 and chance.random() < 0.1 else None
    body = json.dumps({
        "prompt": prompt, "max_tokens": length, "temperature": 0, "stream": True,
        "ignore_eos": True, "return_token_ids": True,
    }).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        writer.write(head.encode() + body)
        status = await reader.readline()
        assert b" 200 " in status, status
        ids, reason = [], None
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            ids += choice["token_ids"]
            reason = reason or choice["finish_reason"]
            if leaves and len(ids) >= leaves and not reason:
                counts["left"] += 1
                return
        assert ids == tokens[:length], (prompt, ids, tokens[:length])
        assert reason == "length", reason
        counts["answered"] += 1
        counts["tokens"] += len(ids)
    finally:
        writer.close()


async def stream(server, seed, cases, counts, longest, goes_on):
    chance = random.Random(seed)
    await asyncio.sleep(chance.random())
    while goes_on():
        await request(server, chance, cases, counts, longest)
        await asyncio.sleep(chance.expovariate(20))


async def load(server, cases, arguments):
    counts = {"answered": 0, "left": 0, "tokens": 0}
    end = time.time() + arguments.seconds
    memory = []

    def goes_on():
        done = counts["answered"] + counts["left"]
        # Its level is what is there once everything has been used.
        if done >= arguments.requests // 4 and not memory and time.time() > end - arguments.seconds * 0.75:
            memory.append(server.memory())
        return time.time() < end or done < arguments.requests

    streams = [stream(server, seed, cases, counts, arguments.longest, goes_on) for seed in range(arguments.streams)]
    await asyncio.gather(*streams)
    return counts, memory[0] if memory else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--longest", type=int, default=LONGEST, help="the most tokens of an answer")
    arguments = parser.parse_args()
    cases = offline()
    with Server("--max-num-seqs", "64", "--max-seq-len", "256", "--max-queue", "1024") as server:
        started, used = time.time(), cpu(server)
        counts, level = asyncio.run(load(server, cases, arguments))
        took = time.time() - started
        used = {kind: (after - used[kind]) / server.sum("vllm:generation_tokens_total") for kind, after in cpu(server).items()}
        deadline = time.time() + 30
        while server.sum("vllm:num_requests_running") + server.sum("vllm:num_requests_waiting") > 0:
            assert time.time() < deadline, "requests are left"
            time.sleep(0.05)
        assert server.sum("vllm:kv_cache_usage_perc") == 0, "pages are left"
        hits, misses = server.sum("piecewise_step_hits_total"), server.sum("piecewise_step_misses_total")
        steps = server.sum("piecewise_steps_total")
        assert hits + misses == steps > 0
        assert server.sum("vllm:prefix_cache_hits_total") > 0
        assert counts["answered"] > arguments.streams and counts["left"] > 0.07 * sum(counts[kind] for kind in ("answered", "left")), counts
        ends = {r: sum(v for k, v in server.metrics().items() if f'finished_reason="{r}"' in k) for r in ("length", "abort", "error")}
        assert ends["error"] == 0 and ends["length"] + ends["abort"] == counts["answered"] + counts["left"], (ends, counts)
        now = server.memory()
        print(f"{counts} in {took:.1f}s, {steps:.0f} steps, {level} then {now} kB", flush=True)
        print("CPU a token: " + ", ".join(f"{kind} {1e6 * seconds:.1f} us" for kind, seconds in used.items()), flush=True)
        if level:
            most = LONG_GROWTH if arguments.requests else SHORT_GROWTH
            assert now < level + most, "memory grows"


if __name__ == "__main__":
    main()

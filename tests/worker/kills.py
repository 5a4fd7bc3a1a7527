"""Random kills and restarts of workers and of the front end under load, for `tests/soak.sh worker`:

PIECEWISE_VLLM_RS="$(.ci/install-vllm-rs)" python3 tests/worker/kills.py [KILLS] [SEED]
"""

import collections
import random
import sys
import threading
import time

from fleet import EXPECTED, IDS, PROMPTS, Fleet, needs_vllm_rs, until

# A request of at most 300 tokens that has no answer after so long has none.
PATIENCE = 45


class Load:
    """Clients that ask without a pause, and what becomes of it."""

    def __init__(self, fleet, clients):
        self.fleet, self.ends, self.wrong = fleet, collections.Counter(), []
        # One epoch for each front end: what it takes with it is not counted against a worker.
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(n,)) for n in range(clients)]
        [thread.start() for thread in self.threads]

    def ask(self, number):
        rng = random.Random(number)
        while not self.stop.is_set():
            front, prompt, count = self.fleet.front, rng.choice(PROMPTS), rng.choice([8, 64, 300])
            began = time.monotonic()
            status, answer = front.post(prompt=prompt, max_tokens=count, timeout=PATIENCE, **IDS)
            took = time.monotonic() - began
            if status == 200:
                ids = answer["choices"][0]["token_ids"]
                if ids[:64] != EXPECTED[prompt][:count] or len(ids) != count:
                    self.wrong.append((prompt, count, ids))
            elif status == 0 and took > PATIENCE - 5:
                self.wrong.append(("no answer", prompt, count, answer))
            elif status not in (0, 500, 503):
                self.wrong.append((status, answer))
            self.ends[status] += 1
            if status == 0:
                # The front end is away.
                time.sleep(0.1)

    def end(self):
        self.stop.set()
        [thread.join() for thread in self.threads]


def main():
    needs_vllm_rs()
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rng, started, done = random.Random(seed), time.monotonic(), collections.Counter()
    with Fleet() as fleet:
        load = Load(fleet, 12)
        try:
            while sum(done.values()) < kills and not load.wrong:
                time.sleep(rng.uniform(0, 0.8))
                what = rng.choices(["worker", "drain", "both", "front end"], [6, 2, 1, 2])[0]
                if what == "front end":
                    fleet.front.kill()
                    time.sleep(rng.uniform(0, 0.3))
                    fleet.restart_front()
                    fleet.front.wait(120)
                else:
                    ranks = [0, 1] if what == "both" else [rng.randrange(2)]
                    for rank in ranks:
                        worker = fleet.workers[rank]
                        assert worker.end() == 0 if what == "drain" else not worker.kill()
                    time.sleep(rng.uniform(0, 0.5))
                    for rank in ranks:
                        fleet.workers[rank].drop()
                        fleet.start(rank)
                    for rank in ranks:
                        until("it is back", fleet.workers[rank].is_ready, 60)
                done[what] += 1
        finally:
            load.end()
        assert not load.wrong, load.wrong[:5]
        until("pages are free", lambda: all(worker.is_idle() for worker in fleet.workers), 20)
        status, answer = fleet.front.post(max_tokens=64, **IDS)
        assert status == 200 and answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]], answer
    ends = ", ".join(f"{count} of {status}" for status, count in sorted(load.ends.items()))
    print(f"kills: {dict(done)} in {time.monotonic() - started:.0f} s; answers by status: {ends}; every request "
          "had one, every page is free")


if __name__ == "__main__":
    main()

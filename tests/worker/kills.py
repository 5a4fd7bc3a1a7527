"""Random kills and restarts of workers and of the front end under load, for `tests/soak.sh worker`:

PIECEWISE_VLLM_RS="$(.ci/install-vllm-rs)" python3 tests/worker/kills.py [KILLS] [SEED]
"""

import collections
import random
import sys
import threading
import time

from fleet import EXPECTED, IDS, PROMPTS, Fleet, needs_vllm_rs, until

# A request of at most 160 tokens that has no answer after so long has none, however busy the machine.
PATIENCE = 300


class Load:
    """Clients that ask without a pause, and what becomes of it."""

    def __init__(self, fleet, clients):
        self.fleet, self.ends, self.wrong = fleet, collections.Counter(), []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(n,)) for n in range(clients)]
        [thread.start() for thread in self.threads]

    def ask(self, number):
        rng = random.Random(number)
        while not self.stop.is_set():
            front, prompt, count = self.fleet.front, rng.choice(PROMPTS), rng.choice([8, 64, 160])
            began = time.monotonic()
            status, answer = front.post(prompt=prompt, max_tokens=count, timeout=PATIENCE, **IDS)
            took = time.monotonic() - began
            if status == 200:
                ids = answer["choices"][0]["token_ids"]
                if ids[:64] != EXPECTED[prompt][:count] or len(ids) != count:
                    self.wrong.append((prompt, count, ids))
            elif status == 0 and "Refused" not in str(answer) and (took > PATIENCE - 5 or self.outlives(front)):
                # Only the end of the front end itself cuts a connection; one that starts refuses it.
                self.wrong.append(("no answer", prompt, count, answer))
            elif status not in (0, 500, 503):
                self.wrong.append((status, answer))
            self.ends[status] += 1
            if status != 200:
                # The front end is away, or it says to try again.
                time.sleep(0.1)

    def outlives(self, front):
        """Whether a front end that has cut a connection goes on; that it has ended shows a moment later."""
        time.sleep(2)
        return self.fleet.front is front and front.process.poll() is None and front.get("/health")[0] == 200

    def end(self):
        self.stop.set()
        [thread.join() for thread in self.threads]


def restart(fleet, ranks, drains=False, pause=0):
    for rank in ranks:
        worker = fleet.workers[rank]
        assert worker.end(300) == 0 if drains else not worker.kill()
    time.sleep(pause)
    for rank in ranks:
        fleet.workers[rank].drop()
        fleet.start(rank)


def came_up(fleet):
    """Waits for the front end, and starts it again where it ends because a worker has died in the moment of its
    handshake; returns how often that was."""
    given_up = 0
    while True:
        front = fleet.front
        until("the front end is up", lambda: front.get("/health")[0] == 200 or front.process.poll() is not None, 300)
        if front.process.poll() is None:
            return given_up
        assert "duplicate HELLO" in front.text(), front.text()[-2000:]
        given_up += 1
        fleet.restart_front()


def main():
    needs_vllm_rs()
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rng, started, done = random.Random(seed), time.monotonic(), collections.Counter()
    with Fleet() as fleet:
        load = Load(fleet, 12)
        try:
            while (count := sum(done.values()) - done["a front end gave up"]) < kills and not load.wrong:
                time.sleep(rng.uniform(0, 0.8))
                what = rng.choices(["worker", "drain", "both", "front end", "joining"], [6, 2, 1, 2, 1])[0]
                if what in ["front end", "joining"]:
                    fleet.front.kill()
                    time.sleep(rng.uniform(0, 0.3))
                    fleet.restart_front()
                    if what == "joining":
                        # A worker dies while the front end waits for both.
                        time.sleep(rng.uniform(0, 2))
                        restart(fleet, [rng.randrange(2)])
                    done["a front end gave up"] += came_up(fleet)
                    ranks = [0, 1]
                else:
                    ranks = [0, 1] if what == "both" else [rng.randrange(2)]
                    restart(fleet, ranks, drains=what == "drain", pause=rng.uniform(0, 0.5))
                for rank in ranks:
                    until("it is back", fleet.workers[rank].is_ready, 300)
                done[what] += 1
                if count % 20 == 19:
                    print(f"{count + 1} kills, {time.monotonic() - started:.0f} s, answers {dict(load.ends)}",
                          flush=True)
        finally:
            load.end()
        assert not load.wrong, load.wrong[:5]
        until("pages are free", lambda: all(worker.is_idle() for worker in fleet.workers), 120)
        status, answer = fleet.front.post(max_tokens=64, **IDS)
        assert status == 200 and answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]], answer
    ends = ", ".join(f"{count} of {status}" for status, count in sorted(load.ends.items()))
    print(f"kills: {dict(done)} in {time.monotonic() - started:.0f} s; answers by status: {ends}; every request "
          "had one, every page is free")


if __name__ == "__main__":
    main()

"""What becomes of requests when a part dies or talks nonsense:

PIECEWISE_VLLM_RS="$(.ci/install-vllm-rs)" PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/faults.py
"""

import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

import msgspec
import zmq

from fleet import EXPECTED, IDS, PROMPTS, Fleet, Worker, needs_vllm_rs, total, until
from made_front_end import Nonsense, answer

LONG = dict(max_tokens=900, **IDS)


def many(pool, fleet, count, **ask):
    return [pool.submit(fleet.front.post, **ask) for _ in range(count)]


def is_right(fleet):
    status, answer = fleet.front.post(max_tokens=64, **IDS)
    return status == 200 and answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]]


def busy(worker):
    return total(worker.metrics(), "vllm:num_requests_running")


def killed_worker(fleet, pool):
    """Its requests end with an error at once, no others do, and a new one is back in its place."""
    asked = many(pool, fleet, 8, **LONG)
    streams = [pool.submit(fleet.front.stream, **LONG) for _ in range(8)]
    until("all run", lambda: sum(busy(worker) for worker in fleet.workers) == 16)
    lost = busy(fleet.workers[0])
    fleet.workers[0].kill()
    killed = time.monotonic()
    # Who streams has had tokens, and sees the error behind them.
    ends = [future.result()[-1] for future in streams]
    cut = [end["error"] for end in ends if "error" in end]
    assert all(error["code"] == 503 and "try again" in error["message"] for error in cut), cut
    assert all(end["choices"][0]["finish_reason"] == "length" for end in ends if "error" not in end), ends
    lost -= len(cut)
    assert cut and lost > 0, (ends, lost)
    answers = [future.result() for future in asked]
    statuses = sorted(status for status, _ in answers)
    assert statuses.count(503) == lost and statuses.count(200) == 8 - lost, statuses
    assert all("try again" in answer["error"]["message"] for status, answer in answers if status == 503)
    # While it is away the other has everything, or a request is told at once to try again.
    for _ in range(20):
        status, answer = fleet.front.post(max_tokens=2, timeout=10)
        assert status in (200, 503), answer
    assert is_right(fleet)
    fleet.start(0)
    fleet.wait_for(0)
    assert "is back at" in fleet.workers[0].text(), fleet.workers[0].text()
    answers = [future.result() for future in many(pool, fleet, 16, max_tokens=64, **IDS)]
    assert all(status == 200 for status, _ in answers)
    assert all(answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]] for _, answer in answers)
    served = [total(worker.metrics(), "vllm:request_success_total") for worker in fleet.workers]
    assert served[0] > 0, "the front end sends it nothing"
    return time.monotonic() - killed


def drained_worker(fleet, pool):
    """SIGTERM lets its requests end; the front end goes on without it, and with the next."""
    asked = many(pool, fleet, 8, max_tokens=300, **IDS)
    until("both run", lambda: all(busy(worker) >= 3 for worker in fleet.workers))
    assert fleet.workers[1].end() == 0, fleet.workers[1].text()
    assert all(future.result()[0] == 200 for future in asked)
    assert is_right(fleet)
    fleet.start(1)
    fleet.wait_for(1)


def killed_front_end(fleet, pool):
    """Workers stay, free the pages of its requests, and serve the next one."""
    def aborted():
        return sum(total(worker.metrics(), "vllm:request_success_total", 'finished_reason="abort"')
                   for worker in fleet.workers)

    before = aborted()
    asked = many(pool, fleet, 8, **LONG)
    until("both run", lambda: all(busy(worker) >= 3 for worker in fleet.workers))
    fleet.front.kill()
    for future in asked:
        future.result()
    until("pages are free", lambda: all(worker.is_idle() for worker in fleet.workers), 10)
    assert aborted() - before == 8, "they ran to their end"
    fleet.restart_front()
    fleet.front.wait()
    assert all(worker.process.poll() is None for worker in fleet.workers)
    answers = [future.result() for future in many(pool, fleet, 16, max_tokens=64, **IDS)]
    assert all(status == 200 for status, _ in answers), answers
    until("nobody is left", lambda: all(total(worker.metrics(), "vllm:num_requests_running") == 0 for worker in fleet.workers))


def nonsense():
    """What can't be read is refused or passed over, and the next request is served."""
    front = Nonsense()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(front.port, 0, state)
        ready = front.join()
        assert ready["vllm_version"] == "0.33.0" and ready["block_size"] == 16, ready
        front.add("first")
        golden, why, _ = front.answer("first")
        assert len(golden) == 4 and why == 1

        def serves(name):
            front.add(name)
            assert front.answer(name)[:2] == (golden, 1), name

        # Unknown kinds, missing frames, and frames that are cut or no msgpack.
        for frames in [(b"\7", b"x"), (b"\0",), (b"", b""), (b"\0", b"\xc1"), (b"\1", b"\xc1"), (b"\3", b"\x91"),
                       (b"\0", b""), (b"\0\0\0", b"\x90"), (b"\2", b"\xc1"), (os.urandom(9), os.urandom(300))]:
            front.send(*frames)
        serves("after nonsense")
        # Who names no request can't be answered: the log says what was refused.
        for said in ["a message of 2 frames and the unknown kind", "a message of 1 frames and the unknown kind",
                     "a request that can't be read", "an abort that can't be read", "a call that can't be read"]:
            until(said, lambda: said in worker.text())
        # A request whose id can be read has an answer, whatever comes behind it.
        encoded = msgspec.msgpack.encode(["cut", [1, 2, 3], None, {"max_tokens": 4}, None, 1.0, None, None, None])
        for cut in [8, 12, len(encoded) - 1]:
            front.send(b"\0", encoded[:cut])
            ids, why, error = front.answer("cut")
            assert (ids, why) == ([], 3) and error["retryable"] is False, error
        # Another version: a request of more fields, and a sampling parameter that there is not.
        front.add("newer", more=[None] * 14)
        ids, why, error = front.answer("newer")
        assert why == 3 and "another version" in error["message"], error
        front.add("odd", sampling={"tachyons": 3})
        assert "tachyons" in front.answer("odd")[2]["message"]
        # Another model's length and vocabulary.
        front.add("long", prompt=[1] * 5000)
        ids, why, error = front.answer("long")
        assert why == 3 and "5000" in error["message"], error
        front.add("strange", prompt=[1, 2, 70000])
        assert "70000" in front.answer("strange")[2]["message"]
        front.add("empty", prompt=[])
        assert front.answer("empty")[1] == 3
        # The same request twice: one answer, of the first.
        front.add("twice", sampling={"max_tokens": 40})
        front.add("twice", sampling={"max_tokens": 2})
        assert len(front.answer("twice")[0]) == 40
        until("that is said", lambda: "the request twice came twice" in worker.text())
        # An abort of what is not there, and of what is.
        front.add("gone", sampling={"max_tokens": 900})
        for _ in range(2):
            front.send(b"\1", msgspec.msgpack.encode(["nobody", "gone"]))
        serves("after an abort that came twice")
        until("pages are free", worker.is_idle)
        # What may come, what may not, and what not yet.
        def ids(name, **sampling):
            front.add(name, sampling=sampling)
            return front.answer(name)[0]
        assert ids("unless", _bad_words_token_ids=[golden[:1], golden[:2]])[0] != golden[0]
        assert ids("only", allowed_token_ids=[golden[3], 9]) and set(ids("again", allowed_token_ids=[9])) == {9}
        ends = {"stop_token_ids": golden[:1], "_all_stop_token_ids": golden[:1]}
        assert ids("ends", **ends) == golden[:1]
        assert golden[0] not in ids("not yet", min_tokens=4, **ends)
        front.add("outside", sampling={"allowed_token_ids": [70000]})
        assert "70000" in front.answer("outside")[2]["message"]
        # Utility calls: each has an answer.
        assert front.call(1, "get_supported_tasks") == [1, None, [None, ["generate"]]]
        assert front.call(2, "reset_prefix_cache", False, False) == [2, None, [None, True]]
        assert front.call(3, "is_sleeping") == [3, None, [None, False]]
        number, failure, result = front.call(4, "sleep", 1, "abort")
        assert (number, result) == (4, None) and "sleep" in failure, failure
        assert "fly" in front.call(5, "fly")[1]
        serves("last")
        # A worker that nobody asks anything says how it is all the same: what the front end has heard last
        # may be of its stand-in.
        for _ in range(4):
            said = front.heard()
        assert (said["num_running_reqs"], said["num_waiting_reqs"], said["kv_cache_usage"]) == (0, 0, 0), said
        # A stream that is no longer ZMTP is a front end that is gone: the worker looks for it anew.
        front.close()
        until("it notices", lambda: "is gone" in worker.text())
        worker.drop()


def other_handshakes():
    """A front end that can't be understood is refused with the reason, and asked again."""
    for init, reason in [
        ({"welcome": True}, "unknown field `welcome`"),
        (answer(inputs=["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]), "2 sockets for requests"),
        (answer(inputs=["ipc:///tmp/x"]), "only tcp:// is supported"),
        # Another version has other fields.
        (answer(tachyon_input=None), "unknown field `tachyon_input`"),
        ({**answer(), "vllm_version": "0.34.0"}, "unknown field `vllm_version`"),
        ({**answer(), "parallel_config": {"data_parallel_size": 2}}, "`parallel_config` has `data_parallel_size`"),
        (answer(coordinator_input="tcp://127.0.0.1:4"), "step together"),
    ]:
        front = Nonsense(init)
        with tempfile.TemporaryDirectory() as state:
            worker = Worker(front.port, 0, state)
            front.greet()
            until(reason, lambda: reason in worker.text())
            assert "not of vLLM 0.33.0" in worker.text(), worker.text()
            front.close()
            assert worker.end() == 0
            worker.drop()


def strangers():
    """Who listens there may be no front end: it is named, and looked for again."""
    def http(peer):
        peer.recv(64)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n" + b" " * 64)

    for answer, reason in [(http, "not of ZMTP 3"), (lambda peer: None, "closed the connection")]:
        with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as state:
            worker = Worker(listener.getsockname()[1], 0, state)
            for _ in range(2):
                peer, _ = listener.accept()
                with peer:
                    answer(peer)
            until(reason, lambda: reason in worker.text())
            assert worker.end() == 0
            worker.drop()
    # A socket of ZeroMQ, but of another kind.
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(pull.bind_to_random_port("tcp://127.0.0.1"), 0, state)
        # libzmq itself turns it away, as a rule before it says what it is.
        until("another kind", lambda: re.search("closed the connection|does not fit", worker.text()))
        assert worker.end() == 0
        worker.drop()
    context.destroy(linger=0)


def second_signal():
    """A second SIGTERM does not wait for the requests that run: they end with an error."""
    front = Nonsense()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(front.port, 0, state)
        front.join()
        front.add("long", prompt=[7] * 9, sampling={"max_tokens": 1000})
        until("it runs", lambda: busy(worker) == 1)
        worker.process.send_signal(signal.SIGTERM)
        until("it drains", lambda: not worker.is_ready())
        assert busy(worker) == 1
        assert worker.end() != 0, worker.text()
        ids, why, error = front.answer("long")
        assert len(ids) < 1000 and why == 3 and error["retryable"], (why, error)
        worker.drop()
    front.close()


def killed_in_a_call():
    """A call that waits for the step that runs has an answer though the worker is killed meanwhile, and so have
    those that come after; so has the request."""
    front = Nonsense()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(front.port, 0, state, settings=["--dtype", "f32", "--max-num-tokens", "2048",
                                                        "--capture-num-tokens", "1"])
        front.join()
        # Steps of seconds.
        for number in range(4):
            front.add(f"long {number}", prompt=[number + 7] * 2000)
        until("it runs", lambda: busy(worker) > 0)
        front.ask(1, "reset_prefix_cache")
        time.sleep(0.1)
        worker.kill()
        number, failure, result = front.told(1)
        # A step may have been quicker.
        assert result == [None, True] or "ended" in failure, failure
        assert "ended" in front.call(2, "is_sleeping")[1]
        worker.drop()
    front.close()


def drained_while_preparing():
    """Requests whose structures are being made when SIGTERM comes get their answers."""
    front = Nonsense()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(front.port, 0, state)
        front.join()
        words = [f"word {n} {'x' * (n % 40)}" for n in range(1900)]
        for number in range(12):
            front.add(f"s{number}", sampling={
                "max_tokens": 8, "structured_outputs": {"choice": words[number:], "_backend": "guidance"}})
        # It has read them all.
        assert front.call(1, "is_sleeping")[1] is None
        worker.process.send_signal(signal.SIGTERM)
        ends = front.answers([f"s{number}" for number in range(12)])
        assert all(ids and why in [0, 1] for ids, why, _ in ends.values()), (ends, worker.process.poll(), worker.text())
        assert worker.process.wait(timeout=60) == 0, worker.text()
        worker.drop()
    front.close()


def kept_worker(pool):
    """`--restart`, for containers: the parent of a worker that dies starts it again in its place, and what it had is
    answered; SIGTERM to the parent drains; a worker that can't start is not tried again, and one
    that has lost its parent drains."""
    with Fleet(worker_flags=["--restart"]) as fleet:
        parent = fleet.workers[0].process.pid
        children = lambda: [int(pid) for pid in open(f"/proc/{parent}/task/{parent}/children").read().split()]
        for _ in range(2):
            asked = many(pool, fleet, 8, **LONG)
            until("both run", lambda: all(busy(worker) >= 3 for worker in fleet.workers))
            [worker] = children()
            os.kill(worker, signal.SIGKILL)
            statuses = sorted(future.result()[0] for future in asked)
            assert set(statuses) == {200, 503}, statuses
            until("another is there", lambda: children() not in ([], [worker]))
            fleet.wait_for(0)
        answers = [future.result() for future in many(pool, fleet, 16, max_tokens=64, **IDS)]
        assert all(status == 200 for status, _ in answers), answers
        until("it counts", lambda: total(fleet.workers[0].metrics(), "vllm:request_success_total") > 0)
        asked = many(pool, fleet, 8, max_tokens=300, **IDS)
        until("both run", lambda: all(busy(worker) >= 3 for worker in fleet.workers))
        assert fleet.workers[0].end() == 0, fleet.workers[0].text()
        assert all(future.result()[0] == 200 for future in asked)
        # The other one is told twice: what it has ends with an error, and so does it.
        parent = fleet.workers[1].process.pid
        asked = many(pool, fleet, 4, **LONG)
        until("they run", lambda: busy(fleet.workers[1]) >= 3)
        fleet.workers[1].process.send_signal(signal.SIGTERM)
        until("it drains", lambda: not fleet.workers[1].is_ready())
        assert busy(fleet.workers[1]) >= 3
        assert fleet.workers[1].end(10) == 1, fleet.workers[1].text()
        assert all(future.result()[0] == 503 for future in asked)
        # And one whose parent is gone drains.
        fleet.start(1)
        fleet.wait_for(1)
        parent = fleet.workers[1].process.pid
        [worker] = children()
        fleet.workers[1].kill()
        commands = lambda: subprocess.run(["ps", "-o", "args=", "-p", str(worker)], capture_output=True, text=True).stdout
        until("it has ended", lambda: "--kept" not in commands())
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(1, 0, state, "--restart", model=state)
        assert worker.process.wait(timeout=30) == 1, worker.text()
        worker.drop()


def killed_while_joining(pool):
    """A worker that dies while the front end still waits for another one is back in its place."""
    with Fleet(wait=False, start=[0]) as fleet:
        until("rank 0 has joined", fleet.workers[0].is_ready)
        fleet.workers[0].kill()
        fleet.start(0)
        until("rank 0 is back", fleet.workers[0].is_ready)
        fleet.start(1)
        fleet.front.wait()
        answers = [future.result() for future in many(pool, fleet, 16, max_tokens=64, **IDS)]
        assert all(status == 200 for status, _ in answers), answers
        until("both count", lambda: all(total(worker.metrics(), "vllm:request_success_total") > 0 for worker in fleet.workers))


def other_lengths(pool):
    """A worker whose sequences are shorter than the other's refuses what does not fit, or the front end does for
    both; what fits is served by both."""
    with Fleet(wait=False, start=[0]) as fleet:
        fleet.settings = [*fleet.settings, "--max-seq-len", "128"]
        fleet.start(1)
        fleet.front.wait()
        answers = [future.result() for future in many(pool, fleet, 12, prompt=[5] * 200, max_tokens=4)]
        refused = [answer for status, answer in answers if status == 400]
        assert refused and all(status in (200, 400) for status, _ in answers), answers
        assert all("128" in answer["error"]["message"] for answer in refused), refused
        answers = [future.result() for future in many(pool, fleet, 16, max_tokens=64, **IDS)]
        assert all(status == 200 for status, _ in answers), answers
        until("pages are free", lambda: all(worker.is_idle() for worker in fleet.workers))
        return len(refused)


def main():
    needs_vllm_rs()
    started = time.monotonic()
    nonsense()
    other_handshakes()
    strangers()
    second_signal()
    killed_in_a_call()
    drained_while_preparing()
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        killed_while_joining(pool)
        other_lengths(pool)
        kept_worker(pool)
    with Fleet() as fleet, concurrent.futures.ThreadPoolExecutor(64) as pool:
        away = killed_worker(fleet, pool)
        drained_worker(fleet, pool)
        killed_front_end(fleet, pool)
        killed_worker(fleet, pool)
        until("all are idle", lambda: all(worker.is_idle() for worker in fleet.workers))
    print(f"faults: each request had its answer, a killed worker was back after {away:.1f} s, "
          f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()

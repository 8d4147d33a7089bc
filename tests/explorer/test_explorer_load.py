"""The service under stress: lines and batches, too much at once, slow and vanishing clients, and how it stops."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import Client, serving

import regard
from regard import cli
from regard.explorer.http import _connection, _server
from regard.explorer.http.metrics import ServiceMetrics
from regard.explorer.http.queue import Busy, Closing, Late, Queue
from regard.explorer.models import Models

pytestmark = pytest.mark.slow  # it waits for clients that are slow

ROOT = Path(regard.__file__).parent.parent
POST = (
    b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
TEXTS = ["the dog sees a cat .", "a bird .", "the small red cat eats the bird .", "the dog finds a big dog ."]


# --- a line before a thread ---


class Worker:
    """Notes what it was given; waits where it is told to."""

    def __init__(self):
        self.batches, self.gate, self.begun = [], threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, key, items):
        self.batches.append((key, items))
        self.begun.set()
        assert self.gate.wait(60)
        if "poison" in items and len(items) > 1:
            raise RuntimeError("the whole batch")
        return [ValueError("bad") if item in ("bad", "poison") else (key, item) for item in items]


def in_line(test, **options):
    """Runs a coroutine function with a worker and its line."""
    worker = Worker()

    async def main():
        settings = {"name": "model", "limit": 8, "metrics": ServiceMetrics(), "batch": 3, "weight": 100, "gather": 0.02}
        line = Queue(worker, **{**settings, **options})
        line.open()
        try:
            await test(worker, line)
        finally:
            worker.gate.set()
            await line.close()

    asyncio.run(main())


def test_requests_that_come_together_are_done_together():
    async def test(worker, line):
        asked = [line.ask("a" if i % 2 else "b", i, seconds=5) for i in range(8)]
        answers = await asyncio.gather(*asked)
        assert answers == [("a" if i % 2 else "b", i) for i in range(8)]
        assert worker.batches[0] == ("b", [0, 2, 4])  # of one key, and no more than fit
        assert sorted(len(items) for _, items in worker.batches) == [1, 1, 3, 3]

    in_line(test)


def test_a_batch_has_a_weight():
    async def test(worker, line):
        await asyncio.gather(*(line.ask("a", i, seconds=5, weight=w) for i, w in enumerate((60, 60, 40, 500))))
        assert [items for _, items in worker.batches] == [[0, 2], [1], [3]]

    in_line(test)


def test_a_full_line_refuses_and_recovers():
    async def test(worker, line):
        worker.gate.clear()
        first = asyncio.create_task(line.ask("a", 0, seconds=5))
        await asyncio.to_thread(worker.begun.wait, 5)
        waiting = [asyncio.create_task(line.ask("a", i, seconds=5)) for i in range(1, 9)]
        await asyncio.sleep(0)
        with pytest.raises(Busy) as busy:
            await line.ask("a", 9, seconds=5)
        assert 1 <= busy.value.retry_after <= 30
        worker.gate.set()
        assert await asyncio.gather(first, *waiting) == [("a", i) for i in range(9)]
        assert await line.ask("a", 10, seconds=5) == ("a", 10)

    in_line(test)


def test_who_gives_up_is_not_worked_for():
    async def test(worker, line):
        worker.gate.clear()
        first = asyncio.create_task(line.ask("a", "first", seconds=5))
        await asyncio.to_thread(worker.begun.wait, 5)
        gone = asyncio.create_task(line.ask("a", "gone", seconds=5))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(Late) as late:
            await line.ask("a", "late", seconds=0.05)
        assert not late.value.begun
        worker.gate.set()
        await first
        assert await line.ask("a", "last", seconds=5) == ("a", "last")
        assert [items for _, items in worker.batches] == [["first"], ["last"]]

    in_line(test)


def test_work_that_takes_too_long_is_told_so():
    async def test(worker, line):
        worker.gate.clear()
        with pytest.raises(Late) as late:
            await line.ask("a", 0, seconds=0.1)
        assert late.value.begun
        worker.gate.set()
        assert await line.ask("a", 1, seconds=5) == ("a", 1)

    in_line(test)


def test_a_failure_spoils_no_other_request():
    async def test(worker, line):
        asked = [line.ask("a", item, seconds=5) for item in ("good", "bad", "poison")]
        good, bad, poison = await asyncio.gather(*asked, return_exceptions=True)
        assert good == ("a", "good") and isinstance(bad, ValueError) and isinstance(poison, ValueError)

    in_line(test)


def test_a_closed_line_ends_what_it_has_and_takes_nothing_more():
    async def test(worker, line):
        worker.gate.clear()
        running = asyncio.create_task(line.ask("a", 0, seconds=5))
        await asyncio.to_thread(worker.begun.wait, 5)
        waiting = asyncio.create_task(line.ask("b", 1, seconds=5))
        await asyncio.sleep(0)
        closing = asyncio.create_task(line.close(60))
        await asyncio.sleep(0)
        with pytest.raises(Closing):
            await line.ask("a", 2, seconds=5)
        worker.gate.set()
        assert await running == ("a", 0) and await waiting == ("b", 1)
        await closing

    in_line(test)


def test_a_line_that_is_closed_in_time_refuses_the_rest():
    async def test(worker, line):
        worker.gate.clear()
        running = asyncio.create_task(line.ask("a", 0, seconds=60))
        await asyncio.to_thread(worker.begun.wait, 5)
        waiting = asyncio.create_task(line.ask("b", 1, seconds=60))
        await asyncio.sleep(0)
        assert line.seconds > 0
        await line.close(0.2)
        for task in (running, waiting):
            with pytest.raises(Closing, match="the service is being stopped; try again"):
                await task
        assert line.seconds > 0  # the thread is still at it
        worker.gate.set()
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if not line.seconds:
                break
        assert not line.seconds and [items for _, items in worker.batches] == [[0]]

    in_line(test)


# --- a service under stress ---


class Held(Models):
    """Models that wait for a sign before they translate, and note what they did."""

    def __init__(self, translators):
        self.gate, self.begun, self.texts = threading.Event(), threading.Event(), []
        super().__init__(translators)

    def run(self, key, requests):
        self.begun.set()
        self.texts += [request.text for request in requests]
        assert self.gate.wait(60)
        return super().run(key, requests)


@pytest.fixture
def held(folders):
    models = Held([regard.load(folders[0], device="cpu")])
    yield models
    models.gate.set()


def soon(happens, seconds=60):
    """Whether something happens before the time is over."""
    end = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def translate(client, text, **more):
    return client.post("/api/translate", {"text": text, "beam": 1, **more})


def test_overload_is_answered_with_429_and_passes(held):
    with serving(held, queue=4, batch=2) as client, ThreadPoolExecutor(12) as pool:
        first = pool.submit(translate, client, "the dog")
        assert held.begun.wait(60)
        waiting = [pool.submit(translate, client, "a cat") for _ in range(10)]
        assert soon(lambda: sum(future.done() for future in waiting) == 6)
        refused = [future.result() for future in waiting if future.done()]
        assert client.get("/api/health").status == 200  # others are answered all the while
        assert client.metric("regard_model_waiting ") == 4
        held.gate.set()
        answers = [first.result(), *(future.result() for future in waiting)]
        assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 6
        for answer in refused:
            assert 1 <= int(answer.headers["retry-after"]) <= 30 and "try again" in answer.error
        assert translate(client, "a cat").status == 200


def test_waiting_and_working_have_time_limits(held):
    with serving(held, answer=0.3, batch=1) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(translate, client, "the dog")
        assert held.begun.wait(60)
        second = translate(client, "a cat")
        assert second.status == 503 and "waited more than 0.3 s" in second.error and "retry-after" in second.headers
        assert first.result().status == 504 and "took more than 0.3 s" in first.result().error
        held.gate.set()
        assert soon(lambda: translate(client, "a bird").status == 200)
        assert "a cat" not in held.texts


def test_vanished_clients_cost_no_model_time(held):
    with serving(held, batch=1) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(translate, client, "the dog")
        assert held.begun.wait(60)
        for _ in range(20):
            connection = client.connect()
            connection.request("POST", "/api/translate", '{"text": "nobody"}', {"Content-Type": "application/json"})
            connection.close()
        assert soon(lambda: client.metric("regard_model_given_up_total") == 20)
        assert client.metric("regard_model_waiting ") == 0
        held.gate.set()
        assert first.result().status == 200 and translate(client, "a cat").status == 200
        assert held.texts == ["the dog", "a cat"]


def test_a_stuck_model_is_told_by_the_health(held):
    with serving(held, answer=0.3, stuck=0.5) as client, ThreadPoolExecutor(1) as pool:
        assert client.get("/api/health").json == {"status": "ok"}
        first = pool.submit(translate, client, "the dog")
        assert held.begun.wait(60) and first.result().status == 504
        assert soon(lambda: client.get("/api/health").status == 503)
        told = client.get("/api/health").json
        assert told["status"] == "stuck" and "the model thread" in told["problem"] and "0.5 s" in told["problem"]
        assert client.metric("regard_model_running_seconds") > 0.5
        held.gate.set()
        assert soon(lambda: client.get("/api/health").json == {"status": "ok"})


def exchange(port, *parts, end=False):
    """What comes back for bytes that are sent, until the connection is closed; with ``end`` it is half-closed."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        for part in parts:
            connection.sendall(part)
        if end:
            connection.shutdown(socket.SHUT_WR)
        found = b""
        while more := connection.recv(65536):
            found += more
    return found


def test_a_half_closed_client_gets_its_answer(held):
    body = json.dumps({"text": "the dog", "beam": 1}).encode()
    request = POST % len(body) + body
    with serving(held) as client, ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(exchange, client.port, request, end=True),
            pool.submit(exchange, client.port, request * 2, end=True),
        ]
        assert held.begun.wait(60)
        time.sleep(2.5)  # longer than it takes until a client is asked whether it is still there
        held.gate.set()
        one, two = (future.result() for future in asked)
        assert one.count(b"HTTP/1.1 200 OK") == 1 and one.count(b"HTTP/1.1 100 ") == 1 and one.endswith(b"}")
        assert two.count(b"HTTP/1.1 200 OK") == 2  # also where it sent a second request behind the first
        assert exchange(client.port, request, end=True).startswith(
            b"HTTP/1.1 200 OK"
        )  # a quick answer, and nothing else
        assert exchange(client.port, request[:-5], end=True) == b""  # half a request is none


def test_two_lengths_are_refused(folders):
    body = b'{"text": "the dog"}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    both = (POST % len(body)).replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    with serving(folders[:1]) as client:
        answer = exchange(client.port, both + chunked + b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ") and b"Content-Length or Transfer-Encoding, not both" in answer
        assert answer.count(b"HTTP/1.1") == 1 and b"connection: close" in answer.lower()
        alone = both.replace(b"Content-Length: %d\r\n" % len(body), b"")
        assert exchange(client.port, alone + chunked, end=True).startswith(b"HTTP/1.1 200 ")


def slow(port, start, drip, seconds):
    """What a client gets that sends a byte now and then; b"" where the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(start)
        end = time.monotonic() + seconds
        connection.settimeout(0.1)
        while time.monotonic() < end:
            try:
                first = connection.recv(65536)
                return first + (connection.recv(65536) if first and not first.endswith(b"}") else b"")
            except TimeoutError:
                try:
                    connection.sendall(drip)
                except OSError:
                    return b""
            except ConnectionResetError:  # closed before it had read what was sent
                return b""
    raise AssertionError("the connection was kept")


def test_slow_clients_are_cut_off_and_block_nobody(folders):
    starts = [(b"", b""), (b"GET /api/health HTTP/1.1\r\nHost: local", b"h"), (POST % 500, b" ")]
    with serving(folders[:1], header=2.0, body=2.0) as client, ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(slow, client.port, *start, 20) for start in starts for _ in range(10)]
        begin = time.monotonic()
        for _ in range(20):
            assert translate(client, "the dog").status == 200
        assert time.monotonic() - begin < 60
        ends = [future.result() for future in waiting]
        assert ends[:20] == [b""] * 20
        assert all(end.startswith(b"HTTP/1.1 408 ") and b"took more than 2 s" in end for end in ends[20:])


def test_a_second_request_may_not_be_slow_either(folders):
    with serving(folders[:1], header=1.0) as client, socket.create_connection(("127.0.0.1", client.port), 10) as kept:
        kept.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = kept.recv(65536)
        while not answer.endswith(b"}"):
            answer += kept.recv(65536)
        time.sleep(1.5)  # it may be idle for longer than a request may take
        kept.sendall(b"GET /api/health HTTP/1.1\r\nHost: ")
        begin = time.monotonic()
        assert kept.recv(65536) == b"" and 0.5 < time.monotonic() - begin < 8


def test_a_client_that_does_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(_connection, "UNREAD", 0.1)
    dropped = []

    class Transport(asyncio.Transport):
        def abort(self):
            dropped.append(asyncio.get_running_loop().time())

    async def app(scope, receive, send):
        await send({"type": "http.response.body"})

    async def nothing(*_):
        return {}

    async def request():
        connection = _connection.Connection(asyncio.Protocol(), patience=9.0, idle=0.2)
        connection.connection_made(Transport())
        connection.data_received(b"")
        await connection.answer(app, {"type": "http", "http_version": "1.1"}, nothing, nothing)
        answered = asyncio.get_running_loop().time()
        while not dropped:
            await asyncio.sleep(0.01)
        assert dropped[0] - answered > 0.25
        await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(request(), 5))
    assert len(dropped) == 1


def test_answers_are_the_same_in_a_batch_as_alone(folders):
    with serving(folders, gather=0.1) as client, ThreadPoolExecutor(24) as pool:
        asked = [(text, name) for text in TEXTS for name in ("transformer", "rnn")] * 3
        together = list(pool.map(lambda one: translate(client, one[0], model=one[1]).json, asked))
        assert client.metric('regard_model_batch_requests_bucket{le="1"}') < client.metric(
            "regard_model_batch_requests_count"
        )
        translators = {Path(path).name: regard.load(path, device="cpu") for path in folders}
        for (text, name), answer in zip(asked, together, strict=True):
            assert answer["translation"] == translators[name].translate(text, beam=1) and answer["model"] == name
            assert answer["source"]["text"] == text


def test_hundreds_of_clients_of_all_kinds(folders):
    """300 at once: good ones are answered correctly or told to come back, whatever the others do."""
    right = {text: regard.load(folders[0], device="cpu").translate(text, beam=1) for text in TEXTS}
    post = POST % 40

    def good(client, number):
        text = TEXTS[number % len(TEXTS)]
        for _ in range(50):
            answer = translate(client, text)
            if answer.status != 429:
                break
            time.sleep(0.05 * int(answer.headers["retry-after"]))
        assert answer.status == 200 and answer.json["translation"] == right[text]

    def traces(client, number):
        answer = client.post("/api/trace", {"text": TEXTS[number % len(TEXTS)], "beam": 1})
        assert answer.status in (200, 429)
        if answer.status == 200:
            assert client.get(f"/api/trace/{answer.json['id']}/row").status in (200, 404, 429)

    def vanishes(client, number):
        with socket.create_connection(("127.0.0.1", client.port), 30) as connection:
            connection.sendall(post + b'{"text": "the dog sees the small cat ."}'[: 40 if number % 2 else 20])

    def malformed(client, number):
        assert client.post("/api/translate", b"{" * (number * 300)).status in (400, 413)

    def drips(client, number):
        slow(client.port, post, b" ", 20)

    kinds = [good, good, traces, vanishes, malformed, drips]
    with serving(folders, queue=32, body=2.0, header=2.0) as client, ThreadPoolExecutor(300) as pool:
        for future in [pool.submit(kinds[i % len(kinds)], client, i) for i in range(900)]:
            future.result()
        assert client.metric('regard_requests_total{route="translate",status="500"}') == 0
        assert client.metric("regard_model_waiting ") == 0
        assert translate(client, "the dog").status == 200


# --- the commands ---


def start(*arguments):
    """`regard …` in a process of its own, and a client of it."""
    return begun("-m", "regard", *arguments)


def begun(*arguments):
    """A process that serves, a client of it, and what it said first."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "BROWSER": "true"},
    )
    said = []
    for line in process.stderr:
        said.append(line)
        if "Ctrl-C stops it" in line:
            return process, Client(int(line.split(":")[3].split("/")[0])), "".join(said)
    raise AssertionError("".join(said))


# a service whose model takes so many seconds for each request, and that has so many to stop
SLOW = """
import sys, time
from regard.cli._console import say
from regard.explorer.http import _connection, _server
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.models import Models

folder, takes, stop = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
run = Models.run
Models.run = lambda *arguments: (time.sleep(takes), run(*arguments))[1]
_server.start([folder], port=0, browser=False, limits=ServiceLimits(stop=stop, batch=1), say=say)
"""


def stopped(process, client, count):
    """What ``count`` requests are answered when it gets SIGTERM, its exit code, and what it says."""
    with process, ThreadPoolExecutor(count) as pool:
        try:
            asked = [pool.submit(translate, client, f"the dog {i}") for i in range(count)]
            assert soon(lambda: client.metric("regard_model_waiting ") == count - 1)
            process.send_signal(signal.SIGTERM)
            answers = [future.result() for future in asked]
            return answers, process.wait(60), process.stderr.read()
        finally:
            process.kill()


def test_what_there_is_no_time_for_is_told_so(folders):
    """40 s of work, and 3 s to stop: some requests are answered, the others refused in JSON, and nothing crashes."""
    process, client, _ = begun("-c", SLOW, folders[0], 1, 3)
    answers, code, said = stopped(process, client, 40)
    statuses = [answer.status for answer in answers]
    assert {*statuses} == {200, 503} and 1 <= statuses.count(200) <= 20
    for answer in answers:
        if answer.status == 503:
            assert answer.error == "the service is being stopped; try again"
            assert int(answer.headers["retry-after"]) > 0 and answer.headers["connection"] == "close"
    assert code == 0 and said in (
        "regard: stopped\n",
        "regard: stopped; the model thread was still busy, and was abandoned\n",
    )


def test_a_stuck_model_does_not_keep_it(folders):
    process, client, _ = begun("-c", SLOW, folders[0], 10**6, 0.5)
    answers, code, said = stopped(process, client, 3)
    assert [answer.status for answer in answers] == [503] * 3 and all("stopped" in answer.error for answer in answers)
    assert code == 0 and said == "regard: stopped; the model thread was still busy, and was abandoned\n"


def test_a_second_ctrl_c_does_not_wait_and_is_no_crash(folders):
    process, client, _ = begun("-c", SLOW, folders[0], 10**6, 10**6)
    with process, ThreadPoolExecutor(1) as pool:
        try:
            asked = pool.submit(translate, client, "the dog")
            assert soon(lambda: client.metric("regard_model_running ") == 1)
            process.send_signal(signal.SIGINT)
            assert soon(lambda: refused(client))
            process.send_signal(signal.SIGINT)
            assert asked.result().status == 503 and process.wait(60) == 0
            assert process.stderr.read() == "regard: stopped; the model thread was still busy, and was abandoned\n"
        finally:
            process.kill()


def refused(client):
    """Whether it takes no connection any more."""
    try:
        client.get("/api/health")
    except OSError:
        return True
    return False


def test_clients_that_neither_send_nor_read_do_not_keep_it(folders):
    process, client, _ = begun("-c", SLOW, folders[0], 0, 0.5)
    with process, socket.create_connection(("127.0.0.1", client.port), 60) as connection:
        try:
            connection.sendall(POST % 100 + b'{"text": ')
            assert soon(lambda: client.get("/api/health").status == 200)
            process.send_signal(signal.SIGTERM)
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 5" in answer.lower()
            assert process.wait(60) == 0 and process.stderr.read() == "regard: stopped\n"
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_after_what_runs(folders, number):
    command = ("serve", "--port", "0") if number == signal.SIGTERM else ("explore", "--no-browser", "--port", "0")
    process, client, _ = start(*command, "--model", folders[0])
    with process:
        try:
            body, headers = json.dumps({"text": "a cat . " * 99, "beam": 8}), {"Content-Type": "application/json"}
            connection = client.connect(60)
            connection.request("POST", "/api/translate", body, headers)
            assert soon(lambda: client.metric("regard_model_running "))
            process.send_signal(number)
            assert connection.getresponse().status == 200
            connection.close()
            assert process.wait(60) == 0
            assert process.stderr.read() == "regard: stopped\n"
        finally:
            process.kill()
    with pytest.raises(OSError):
        client.get("/api/health")


def test_ports(folders, tmp_path):
    taken = [_server.listen("127.0.0.1", None)]
    taken.append(_server.listen("127.0.0.1", None))  # another, since none was asked for
    first, second = (listener.getsockname()[1] for listener in taken)
    assert first != second
    with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1, port {first}: Address already in use"):
        _server.listen("127.0.0.1", first)
    with pytest.raises(ValueError, match=r"cannot listen on 203\.0\.113\.1"):
        _server.listen("203.0.113.1", 0)
    for listener in taken:
        listener.close()


def test_addresses():
    with _server.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        shown = {"127.0.0.1": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::1": "[::1]", "::": "[::1]", "box.lan": "box.lan"}
        for host, name in shown.items():
            assert _server.url(host, listener) == f"http://{name}:{port}/"


def test_the_network_is_warned_of_and_the_browser_opened(folders, monkeypatch):
    said, opened = [], threading.Event()

    async def serve(self, sockets):
        self.running.set()
        assert await asyncio.to_thread(opened.wait, 10)

    monkeypatch.setattr(_server.Server, "serve", serve)
    monkeypatch.setattr("webbrowser.open", lambda address: (said.append(address), opened.set()))
    _server.start(folders[:1], host="0.0.0.0", port=0, say=said.append)
    assert said[0].startswith("WARNING: on 0.0.0.0 everyone who can reach this machine")
    assert "the explorer is at http://127.0.0.1:" in said[1] and said[2] in said[1]


def test_without_starlette_the_command_says_what_to_install(monkeypatch, capsys, folders):
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert cli.main(["serve", "--model", folders[0]]) == 2
    assert capsys.readouterr().err.endswith('pip install "regard[explore]"\n')


def test_mistakes_on_the_command_line(capsys, tmp_path):
    assert cli.main(["explore", "--no-browser", "--port", "0", "--model", str(tmp_path / "nix")]) == 2
    assert "there is no such model folder" in capsys.readouterr().err

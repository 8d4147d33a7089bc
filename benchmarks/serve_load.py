"""What the service does under load: requests a second, waiting times, and how many were told to come back.

    python benchmarks/serve_load.py                   a small model with random weights, on this machine's CPU
    python benchmarks/serve_load.py --model folder/   a model of yours

The server is a process of its own; clients are in this one, each with one connection that it keeps, and ask again as
soon as they are answered. Around them are slow clients, that send a byte now and then, and some that hang up. Random
weights know no end: every translation is as long as it may be, twice its source and ten subwords.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from regard.testing.grammar import pairs

HEADERS = {"Content-Type": "application/json"}


def random_model(folder: Path) -> Path:
    """3 + 3 layers of width 256, 8,000 subwords at most: what ``regard train`` makes for a small corpus."""
    import torch

    from regard.models import Transformer, TransformerConfig
    from regard.models import folder as folders
    from regard.text import Subwords

    lines = [text for pair in pairs(2000, seed=0) for text in (pair.english, pair.french)]
    subwords = Subwords.learn([lines], vocab_size=2000)
    torch.manual_seed(0)
    size = {"dim": 256, "ffn_dim": 1024, "heads": 8, "encoder_layers": 3, "decoder_layers": 3}
    folders.save(folder / "random", Transformer(TransformerConfig(vocab_size=len(subwords), **size)), subwords)
    return folder / "random"


def serve(model: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "regard", "serve", "--port", "0", "--device", "cpu", "--model", model]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "Ctrl-C" in line:
            return process, int(line.split(":")[3].split("/")[0])
    raise SystemExit("the service did not start")


class Load:
    """Clients that ask until the time is over, and what they saw."""

    def __init__(self, port: int, texts: list[str], beam: int) -> None:
        self.port, self.texts, self.beam = port, texts, beam
        self.seconds: list[float] = []
        self.statuses: dict[int, int] = {}
        self.lock, self.over = threading.Lock(), threading.Event()

    def ask(self, connection: http.client.HTTPConnection, draw: random.Random) -> int:
        body = json.dumps({"text": draw.choice(self.texts), "beam": self.beam})
        start = time.perf_counter()
        connection.request("POST", "/api/translate", body, HEADERS)
        answer = connection.getresponse()
        answer.read()
        with self.lock:
            self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
            if answer.status == 200:
                self.seconds.append(time.perf_counter() - start)
        return answer.status

    def client(self, seed: int) -> None:
        draw, connection = random.Random(seed), http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self.over.is_set():
            if self.ask(connection, draw) == 429:
                self.over.wait(draw.uniform(0.2, 1.0))
        connection.close()

    def slow(self) -> None:
        """Sends a byte of its body every second, until it is cut off, then again."""
        start = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        while not self.over.is_set():
            with socket.create_connection(("127.0.0.1", self.port)) as connection:
                try:
                    connection.sendall(start + b"Content-Length: 1000\r\n\r\n")
                    while not self.over.wait(1.0):
                        connection.sendall(b" ")
                except OSError:
                    pass

    def hang_up(self, seed: int) -> None:
        """Asks and is gone before the answer."""
        draw = random.Random(seed)
        while not self.over.wait(draw.uniform(0.05, 0.2)):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("POST", "/api/translate", json.dumps({"text": draw.choice(self.texts)}), HEADERS)
            connection.close()

    def run(self, clients: int, slow: int, gone: int, seconds: float) -> float:
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]
        threads += [threading.Thread(target=self.slow) for _ in range(slow)]
        threads += [threading.Thread(target=self.hang_up, args=(i,)) for i in range(gone)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self.over.set()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start


def row(load: Load, clients: str, seconds: float) -> str:
    done = load.seconds or [float("nan")]
    p50, p99 = statistics.median(done), sorted(done)[int(0.99 * (len(done) - 1))]
    busy, other = load.statuses.get(429, 0), sum(n for s, n in load.statuses.items() if s not in (200, 429))
    return (
        f"| {clients} | {len(load.seconds) / seconds:.1f} | {1000 * p50:.0f} ms | {1000 * p99:.0f} ms "
        f"| {busy} | {other} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; by default one with random weights")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128, 300])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number of clients")
    parser.add_argument("--beam", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, port = serve(arguments.model or str(random_model(Path(folder))))
        try:
            texts = [pair.english for pair in pairs(200, seed=1)]
            Load(port, texts, arguments.beam).run(4, 0, 0, 2.0)
            print(f"{os.cpu_count()} cores, beam {arguments.beam}, {arguments.seconds:g} s each")
            print(
                "| clients | answers/s | median | 99 % | told to come back (429) | other |\n|---|---|---|---|---|---|"
            )
            for clients in arguments.clients:
                load = Load(port, texts, arguments.beam)
                seconds = load.run(clients, 0, 0, arguments.seconds)
                print(row(load, str(clients), seconds), flush=True)
            load = Load(port, texts, arguments.beam)
            seconds = load.run(32, 100, 20, arguments.seconds)
            print(row(load, "32, with 100 slow ones and 20 that hang up", seconds))
        finally:
            process.terminate()
            print(f"exit code {process.wait(60)}")


if __name__ == "__main__":
    main()

"""Small models in folders, and a service of them in a thread, asked over real connections."""

import asyncio
import http.client
import json
import threading
from contextlib import contextmanager
from typing import NamedTuple

import chats
import torch
import toy

from regard.explorer.http import _app, _server
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.security import Hosts
from regard.explorer.models import Models
from regard.models import (
    PointerConfig,
    PointerTransformer,
    RNNConfig,
    RNNSeq2Seq,
    Transformer,
    TransformerConfig,
    folder,
)
from regard.models.reader import Reader, ReaderConfig
from regard.text import Subwords


def save_models(path, **settings):
    """A Transformer and an RNN that know nothing: their numbers are as good as any."""
    texts = [[source, target] for source, target, _ in toy.pairs(200, seed=0)]
    subwords = Subwords.learn(texts, vocab_size=330)
    torch.manual_seed(3)
    small = {"vocab_size": len(subwords), "dim": 32}
    transformer = Transformer(TransformerConfig(**small, ffn_dim=48, heads=4, encoder_layers=2, decoder_layers=3))
    rnn = RNNSeq2Seq(RNNConfig(**small, hidden_dim=24, heads=2))
    for name, model in (("transformer", transformer), ("rnn", rnn)):
        folder.save(path / name, model, subwords, settings={"data": {"max_tokens": 64}, **settings})
    return [str(path / name) for name in ("transformer", "rnn")]


def save_task_models(path):
    """A summarizer and a reader that know nothing either."""
    subwords = Subwords.learn([[text for chat in chats.chats(100, 0) for text in chat]], vocab_size=500)
    torch.manual_seed(5)
    small = {"vocab_size": len(subwords), "dim": 32, "ffn_dim": 48, "heads": 2, "encoder_layers": 1}
    models = {
        "summarization": PointerTransformer(PointerConfig(**small, decoder_layers=1, copy_dim=16)),
        "qa": Reader(ReaderConfig(**small, model_layers=1)),
    }
    data = {"summarization": {"max_tokens": 64}, "qa": {"window": 60, "stride": 16, "unanswerable": 3}}
    for task, model in models.items():
        folder.save(path / task, model, subwords, settings={"task": task, "data": data[task]})
    return [str(path / task) for task in models]


class Answer(NamedTuple):
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        def refuse(name):
            raise AssertionError(f"{name} in JSON")

        return json.loads(self.body.decode(), parse_constant=refuse)

    @property
    def error(self):
        assert list(self.json) == ["error"], self.json
        return self.json["error"]


class Client:
    """Asks a service, each time over a new connection."""

    def __init__(self, port):
        self.port = port

    def connect(self, timeout=30):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, timeout=30):
        connection = self.connect(timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path, value, **headers):
        body = value if isinstance(value, (bytes, str)) else json.dumps(value)
        sent = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        return self.ask("POST", path, body, sent)

    def metric(self, name):
        """The number behind a line of the metrics that begins so; 0 where there is none."""
        lines = self.get("/api/metrics").body.decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@contextmanager
def serving(models, *, files=None, given=None, host="127.0.0.1", extra=(), **limits):
    """A client of a running service; ``models`` are folders, or a ``Models``; ``given`` are traces, answers by id."""
    bounds = ServiceLimits(**limits)
    known = models if isinstance(models, Models) else Models.load(models, "cpu")
    listener = _server.listen(host, 0)
    made = _app.make(known, hosts=Hosts(host, extra), limits=bounds, files=files, traces=given)
    server = _server.Server(made, bounds)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        assert server.running.wait(60)
        yield Client(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()

"""Pages of small models, and their documents read as ``web/FORMAT.md`` says: what the page does in JavaScript."""

import json
import re
from base64 import b64decode
from pathlib import Path

import numpy as np
import torch

import regard
from regard.nn import EncoderLayer

TYPES = {(8, False): "u1", (8, True): "i1", (16, False): "<u2", (16, True): "<i2"}


def document(path):
    """The document inside a page, parsed as a browser does: up to the first end of the element."""
    text = Path(path).read_bytes().decode()
    data = re.search(r'<script type="application/json" id="regard-data">(.*?)</script', text, re.DOTALL | re.IGNORECASE)
    return json.loads(data[1])


def matrix(packed):
    rows, columns = packed["shape"]
    data = np.frombuffer(b64decode(packed["data"]), TYPES[packed["bits"], packed["signed"]]).reshape(rows, columns)
    scale = np.frombuffer(b64decode(packed["scale"]), "<f4")
    assert len(scale) == rows
    return data.astype(np.float64) * scale.astype(np.float64)[:, None]


def layer(document, kind, number):
    return next(one for one in document["steps"] if (one["kind"], one["layer"]) == (kind, number))


def steps(document, kind, number, head, query):
    """The numbers of one query of one head, as the page computes them from what is stored."""
    of = layer(document, kind, number)
    one = next(h for h in of["heads"] if h["head"] == head)
    q, k, v = (matrix(one[name]) for name in "qkv")
    keys = len(k)
    products = q[query] * k
    if "products" in one:
        products = matrix(one["products"])[query * keys : (query + 1) * keys]
    similarity = products.sum(1)
    scaled = similarity * (1.0 if of["scale"] is None else of["scale"])
    if "scaled" in one:
        scaled = matrix(one["scaled"])[query]
    masked = np.where(_allowed(one["allowed"], query, keys), scaled, -np.inf)
    raised = np.exp(masked - (masked.max() if np.isfinite(masked.max()) else 0.0))
    weights = raised / raised.sum() if raised.sum() else raised
    found = {"q": q[query], "k": k, "v": v, "products": products, "similarity": similarity, "scaled": scaled}
    found |= {"masked": masked, "weights": weights, "context": weights @ v}
    return found | {n: None if one[n] is None else matrix(one[n])[query] for n in ("recorded", "output")}


def _allowed(allowed, query, keys):
    if allowed is None:
        return np.ones(keys, bool)
    if allowed == "causal":
        return np.arange(keys) <= query
    return np.frombuffer(b64decode(allowed), "u1").reshape(-1, keys)[query] == 1


# --- pages ---

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    "\u2028\u2029",
    '"quoted\\',
    "&lt;b&gt;",
    "\x00\x7f",
    "مرحبا",
    "猫",
    "\ud800",
    "${x}",
    "{brace}",
]
WORDS = ["the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "very", "tired", "and", "so", "he", "slept"]


def encoder(layers=2, heads=4, dim=32, **options):
    made = torch.nn.ModuleList(EncoderLayer(dim, heads, **options) for _ in range(layers)).eval()

    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = made

        def forward(self, x, mask=None):
            for layer in self.layers:
                x = layer(x, mask=mask)
            return x

    return Stack().eval()


def traced(model, *inputs, labels=None, **options):
    with torch.no_grad(), regard.record(model) as trace:
        model(*inputs, **options)
    if labels is not None:
        trace.label(labels)
    return trace


def page(trace, tmp_path, **options):
    path = tmp_path / "page.html"
    trace.to_html(path, **options)
    return path

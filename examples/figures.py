"""Figures of a small model's attention: a Transformer that learns a toy grammar's English and French in a minute.

    python examples/figures.py               trains, draws into out/
    python examples/figures.py --write       draws into docs/img, for docs/figures.md
    python examples/figures.py --bert DIR    also a BERT of Hugging Face in a folder, such as all-MiniLM-L6-v2

What is drawn are the weights of trained models, with real numbers; nothing is made up.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from show import DOCS, heading

import regard
from regard import Trace, Translator, plot
from regard.cli import main as command
from regard.testing import grammar
from regard.text import BOS, EOS

SETTINGS = """
--vocab-size 500 --dim 64 --ffn-dim 128 --heads 4 --encoder-layers 2 --decoder-layers 2 --dropout 0.1 --rdrop 0
--smoothing 0 --tokens 3000 --lr 3e-3 --warmup 100 --device cpu --set subwords.dropout=0 --set model.self_score=dot
"""
LAYER = 1  # whose cross-attention is drawn: the last
SENTENCE = "The animal did not cross the street because it was too tired."


def trained(folder: Path, updates: int = 600) -> Translator:
    """A model of the toy grammar."""
    sides = []
    for name, count, seed in (("train", 8000, 0), ("valid", 100, 1)):
        pairs = grammar.pairs(count, seed=seed)
        for language in ("english", "french"):
            path = folder / f"{name}.{language}"
            path.write_text("".join(f"{getattr(pair, language)}\n" for pair in pairs), encoding="utf-8")
            sides.append(str(path))
    files = zip(("--source", "--target", "--valid-source", "--valid-target"), sides, strict=True)
    given = [part for pair in files for part in pair]
    if command(["train", *given, "--out", str(folder / "model"), "--updates", str(updates), *SETTINGS.split()]):
        raise SystemExit("the model could not be trained")
    return regard.load(folder / "model", device="cpu")


def recorded(translator: Translator, pair: grammar.Pair) -> Trace:
    """All attention of the model while it reads a pair of sentences, labelled with their subwords."""
    sides = [translator.subwords.encode(text) for text in (pair.english, pair.french)]
    with torch.no_grad(), regard.record(translator.model) as trace:
        translator.model(torch.tensor([[*sides[0].ids, EOS]]), torch.tensor([[BOS, *sides[1].ids]]))
    words = [*(pair.english[a:b] for a, b in sides[0].offsets), "</s>"]
    written = ["<s>", *(pair.french[a:b] for a, b in sides[1].offsets)]
    trace.label(words, kind="self")
    trace.label(written, kind="decoder")
    trace.label(written, words, kind="cross")
    return trace


def draw(translator: Translator, folder: Path, suffix: str) -> None:
    """An alignment with gold links, arcs between two sentences, and the steps of one query."""
    pair = next(p for p in grammar.pairs(60, seed=7) if "not" in p.english.split() and len(p.english.split()) > 9)
    source, target = pair.english.split(), pair.french.split()
    (read,) = translator.forced([(pair.english, pair.french)], attention=True)
    weights = translator.word_weights(read.translations[0], layer=LAYER, shift=False)
    trace = recorded(translator, pair)
    written = trace.labels(kind="decoder")[0]
    query = written.index("pas")
    head = int(trace.entropy(LAYER, kind="decoder")[:, query].argmax())  # the one that looks around most
    figures = {
        "figure-alignment": plot.alignment(
            weights, source, target, gold=pair.links, heading="cross-attention, layer 1"
        ),
        "figure-arcs-two": plot.arcs(weights, source, target, top=2),
        "figure-steps": plot.steps(trace.steps(LAYER, head, query, kind="decoder"), written, query="pas", most=12),
    }
    for name, figure in figures.items():
        save(figure, folder / f"{name}.{suffix}")


def draw_bert(path: Path, folder: Path, suffix: str) -> None:
    """What "it" looks at, the same head as a matrix, and all heads."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path)
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad(), regard.record(model) as trace:
        model(**inputs)
    words = tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
    trace.label(words)
    query, noun = words.index("it"), words.index("animal")
    layer, head, _ = max(
        ((i, j, w) for i in range(trace.kinds["self"]) for j, w in enumerate(trace.weights(i, None, query)[:, noun])),
        key=lambda found: found[2],
    )
    save(plot.arcs(trace, layer=layer, head=head, query=query), folder / f"figure-arcs.{suffix}")
    save(plot.heatmap(trace, layer=layer, head=head), folder / f"figure-heatmap.{suffix}")
    save(plot.head_grid(trace), folder / "figure-heads.png", dpi=110)  # an SVG of 72 images would be large


def save(figure: object, path: Path, dpi: float = 200) -> None:
    plot.save(figure, path, dpi=dpi)
    print(f"  {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/img, as SVG")
    parser.add_argument("--model", type=Path, help="a model of the grammar trained before")
    parser.add_argument("--bert", type=Path, help="a folder with a BERT of Hugging Face")
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--suffix", default="svg", choices=["svg", "png", "pdf"])
    args = parser.parse_args()
    folder = DOCS / "img" if args.write else Path("out")
    with TemporaryDirectory() as temporary:
        translator = regard.load(args.model) if args.model else trained(Path(temporary), args.updates)
        heading("Figures")
        draw(translator, folder, args.suffix)
        if args.bert:
            draw_bert(args.bert, folder, args.suffix)


if __name__ == "__main__":
    main()

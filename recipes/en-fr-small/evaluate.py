"""How good a model of this recipe is: BLEU and chrF on four test sets, and word alignment (AER) on the Hansards.

    python recipes/en-fr-small/evaluate.py --model out/en-fr-small/student --corpora CORPORA
    python recipes/en-fr-small/evaluate.py --model … --corpora CORPORA --reverse out/en-fr-small/reverse
    python recipes/en-fr-small/evaluate.py --model regard/bundled/en-fr-small --out out/en-fr-small/tested \\
        --corpora CORPORA --card regard/bundled/en-fr-small/README.md

Translations go to --out, and those that are there are not made again: where sacrebleu is not installed they are made,
and the same command elsewhere scores them. BLEU is sacrebleu's with its tokenizer 13a. With --words, a list of French
words (Debian's package wfrench is one), also how many words were invented: those that are neither there, nor in the
French that was trained on, nor copied from the English. Layer, head and shift of the alignment are chosen on the first
--develop pairs and reported on the others, and on all. Beam and length penalty are the model's own, those of
`[translate]` in its config.toml. --pairs is for a quick look.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from distill import french_words
from prepare import attribution, rows
from texts import key, unheard, words

import regard.align as align
from regard.files.toml import read_toml
from regard.text.lexicon import FILE as LEXICON

INVENTED = "invented words in a thousand"
SEEN, UNSEEN = "French that was read under another sentence", "French that was not"
METHODS = ("intersection", "grow-diag-final-and", "union")


def test_sets(corpora: Path, data: Path) -> dict[str, list[tuple[str, str]]]:
    """Name → pairs. On Tatoeba each pair counts, so an English sentence comes as often as it has translations."""
    news, captions = corpora / "wmt_news_eng_fra", corpora / "multi30k"
    places = {
        "tatoeba": (data / "test.tatoeba.tsv.gz",),
        "newstest2014": tuple(news / f"newstest2014.{side}.gz" for side in ("en", "fr")),
        "multi30k test2016": tuple(captions / f"test_2016_flickr.{side}.gz" for side in ("en", "fr")),
        "laws": (data / "test.laws.tsv.gz",),
    }
    found: dict[str, list[tuple[str, str]]] = {}
    for name, paths in places.items():
        if all(path.exists() for path in paths):
            columns = [list(rows(path)) for path in paths]
            found[name] = [tuple(cell for row in line for cell in row) for line in zip(*columns, strict=True)]  # type: ignore[misc]
    return found


def some_of(pairs: list[tuple[str, str]], most: int | None) -> list[tuple[str, str]]:
    """So many of them, spread over all; all without a number."""
    return pairs[:: max(1, len(pairs) // most)][:most] if most else pairs


def of_this_model(out: Path, model: Path) -> None:
    """Translations that were kept of another model, or with another list of words, are not taken for this one's."""
    digest, note = hashlib.blake2b(digest_size=16), out / "model.txt"
    for name in ("model.safetensors", LEXICON):
        digest.update((model / name).read_bytes() if (model / name).exists() else b"")
    if note.exists() and note.read_text(encoding="utf-8").strip() != digest.hexdigest():
        raise SystemExit(
            f"error: {out} has translations of another model than {model}: remove it, or give another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    note.write_text(digest.hexdigest() + "\n", encoding="utf-8")


def translations(pairs: Sequence[tuple[str, str]], path: Path, translator: Any, options: argparse.Namespace) -> Any:
    """The translation of each pair's source, made once per sentence and kept in a file; and seconds, if made now."""
    sources = list(dict.fromkeys(en for en, _ in pairs))
    seconds = None
    if not path.exists():
        start = time.perf_counter()
        outputs = translator().outputs(sources, batch_tokens=options.batch_tokens)
        seconds = time.perf_counter() - start
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(" ".join(o.text.split()) + "\n" for o in outputs), encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) != len(sources):
        raise ValueError(f"{path} has {len(lines)} lines, the test set {len(sources)} sentences; remove it")
    by_source = dict(zip(sources, lines, strict=True))
    return [by_source[en] for en, _ in pairs], seconds


def scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """BLEU and chrF, or nothing where sacrebleu is not installed."""
    try:
        from regard.evaluate import evaluate

        return {m.name: round(m.score, 2) for m in evaluate(outputs, references)}
    except ModuleNotFoundError:
        return {}


def sentence_by_sentence(pairs: Sequence[tuple[str, str]], outputs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Where sentences have several references: scores with each sentence once, by the first reference and by all.

    Over pairs, a sentence with five references counts five times and can be like one of them at most.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for (en, fr), output in zip(pairs, outputs, strict=True):
        found.setdefault(en, (output, []))[1].append(fr)
    once, references = [output for output, _ in found.values()], [some for _, some in found.values()]
    first = scores(once, [some[0] for some in references])
    if len(found) == len(pairs) or not first:
        return {}
    from sacrebleu import corpus_bleu, corpus_chrf

    columns = [[some[k] if k < len(some) else None for some in references] for k in range(max(map(len, references)))]
    by_all = {"BLEU": corpus_bleu(once, columns).score, "chrF": corpus_chrf(once, columns).score}  # type: ignore[arg-type]
    every = {name: round(score, 2) for name, score in by_all.items()}
    kinds = {"its first reference": first, "all its references": every}
    return {f"each sentence once, {which}": {"pairs": len(once), **one} for which, one in kinds.items()}


def seen_and_not(pairs: Sequence[tuple[str, str]], outputs: Sequence[str], data: Path) -> dict[str, dict[str, Any]]:
    """Scores of the pairs whose French stands in the training data under another sentence, and of the others."""
    path = data / "tatoeba.tsv.gz"
    seen = {key(row[1]) for row in rows(path)} if path.exists() else set()
    parts: dict[str, list[tuple[str, str]]] = {SEEN: [], UNSEEN: []}
    for (_, fr), output in zip(pairs, outputs, strict=True):
        parts[SEEN if key(fr) in seen else UNSEEN].append((output, fr))
    if not seen or not all(parts.values()):
        return {}
    return {name: {"pairs": len(some), **scores(*zip(*some, strict=True))} for name, some in parts.items()}  # type: ignore[arg-type]


def invented(pairs: Sequence[tuple[str, str]], outputs: Sequence[str], heard: set[str]) -> dict[str, Any]:
    """How many of a thousand words were perhaps invented, and some of them. Each sentence counts once."""
    once = {en: output for (en, _), output in zip(pairs, outputs, strict=True)}
    found = [word for en, output in once.items() for word in unheard(output, heard, en)]
    total = sum(len(words(output)) for output in once.values())
    return {INVENTED: round(1000 * len(found) / max(total, 1), 1), "such as": found[:8]}


# --- alignment ---


def hansards(corpora: Path) -> tuple[list[tuple[str, str]], list[align.Alignment]]:
    folder = corpora / "hansards_word_alignment"
    pairs = []
    for (line,) in rows(folder / "enfr.src-tgt"):
        en, fr = line.split("|||")
        pairs.append((" ".join(en.split()), " ".join(fr.split())))
    return pairs, align.read_pharaoh(folder / "enfr.gold", base=1)


Look = tuple[int, int | None, bool]


def every_alignment(translator: Any, pairs: Sequence[tuple[str, str]]) -> dict[Look, list[align.Links]]:
    """Links of each pair for every layer, every head and their mean, shifted and not."""
    outputs = translator.forced(pairs, attention=True)
    layers, heads = next(o.translations[0].attention[0].weights.shape[:2] for o in outputs if o.translations)
    looks = [(k, h, s) for k in range(layers) for h in (None, *range(heads)) for s in (True, False)]
    found: dict[Look, list[align.Links]] = {look: [] for look in looks}
    for output in outputs:
        for layer, head, shift in looks:
            if output.translations:
                which = "mean" if head is None else head  # the model may have a head of its own
                weights = translator.word_weights(output.translations[0], layer=layer, head=which, shift=shift)
                found[layer, head, shift].append(align.links(weights))
            else:
                found[layer, head, shift].append(frozenset())
    return found


def aer(links: Sequence[align.Links], gold: Sequence[align.Alignment], develop: int) -> dict[str, float]:
    parts = {"develop": slice(0, develop), "rest": slice(develop, None), "all": slice(None)}
    return {name: round(100 * align.quality(links[part], gold[part]).aer, 2) for name, part in parts.items()}


def mutual(
    translator: Any, pairs: Sequence[tuple[str, str]], gold: Sequence[align.Alignment], look: Look, develop: int
) -> dict[str, Any]:
    """AER of the links that are the most of both their words, with the threshold that is best on the first pairs."""
    layer, head, shift = look
    which = {"layer": layer, "head": "mean" if head is None else head, "shift": shift}
    found = [
        translator.word_weights(output.translations[0], **which) if output.translations else torch.zeros(0, 0)
        for output in translator.forced(pairs, attention=True)
    ]
    tried = [
        {"threshold": least, **aer([align.links(w, mutual=True, threshold=least) for w in found], gold, develop)}
        for least in (0.0, 0.3, 0.4, 0.5, 0.6)
    ]
    return min(tried, key=lambda one: one["develop"])


def alignment(translator: Any, reverse: Any | None, corpora: Path, develop: int) -> dict[str, Any]:
    """AER of every look, the one that is best on the first pairs, and both directions made one."""
    pairs, gold = hansards(corpora)
    forward = every_alignment(translator, pairs)
    table = {look: aer(links, gold, develop) for look, links in forward.items()}
    best = min(table, key=lambda look: table[look]["develop"])
    report: dict[str, Any] = {
        "forward": {"layer": best[0], "head": best[1], "shift": best[2], **table[best]},
        "every": [{"layer": k, "head": h, "shift": s, "AER": t["all"]} for (k, h, s), t in table.items()],
    }
    report["forward, --mutual"] = mutual(translator, pairs, gold, best, develop)
    if reverse is not None:
        turned = every_alignment(reverse, [(fr, en) for en, fr in pairs])
        other = {look: [align.swap(one) for one in links] for look, links in turned.items()}
        back = min(other, key=lambda look: aer(other[look], gold, develop)["develop"])
        report["reverse"] = {"layer": back[0], "head": back[1], "shift": back[2], **aer(other[back], gold, develop)}
        for method in METHODS:
            both = [align.symmetrize(a, b, method) for a, b in zip(forward[best], other[back], strict=True)]  # type: ignore[arg-type]
            report[method] = aer(both, gold, develop)
    return report


# --- the command ---


def trained_on(model: Path) -> set[str]:
    """Names of the sets, by the files in the model's config.toml."""
    corpora = read_toml(model / "config.toml").get("data", {}).get("corpora", [])
    return {Path(table["tsv"]).name.split(".")[0].removeprefix("distilled-") for table in corpora if "tsv" in table}


def layers(model: Path) -> dict[str, str]:
    """How many the model has."""
    table = read_toml(model / "config.toml").get("model", {})
    return {side: str(table.get(f"{side}_layers", "?")) for side in ("encoder", "decoder")}


def taught(model: Path) -> str:
    """Whether a teacher's translations were among the data."""
    corpora = read_toml(model / "config.toml").get("data", {}).get("corpora", [])
    distilled = any(Path(table.get("tsv", "")).name.startswith("distilled-") for table in corpora)
    return "on larger models' translations of their English side, " if distilled else ""


def card(report: dict[str, Any], model: Path, data: Path, out: Path) -> None:
    """The model card, its blanks filled in."""
    template = (Path(__file__).parent / "MODEL_CARD.md").read_text(encoding="utf-8")
    table = ["| test set | pairs | BLEU (13a) | chrF |", "|---|---|---|---|"]
    for name, found in report["sets"].items():
        table.append(f"| {name} | {found['pairs']:,} | {found.get('BLEU', '')} | {found.get('chrF', '')} |")
    linked = report.get("alignment", {})
    ways = [name for name in ("forward", "forward, --mutual", "reverse", *METHODS) if name in linked]
    told = {name: f" --threshold {linked[name]['threshold']:g}" if "threshold" in linked[name] else "" for name in ways}
    lines = [f"| {name}{told[name]} | {linked[name]['rest']} | {linked[name]['all']} |" for name in ways]
    told_words = [
        f"{found[INVENTED]:g} of a thousand on {name}" for name, found in report["sets"].items() if INVENTED in found
    ]
    counts = json.loads((data / "counts.json").read_text(encoding="utf-8"))
    size = (model / "model.safetensors").stat().st_size / 2**20
    blanks = {
        "parameters": f"{report['parameters']:,}",
        **layers(model),
        "taught": taught(model),
        "invented": f" (words that another French dictionary lacks: {', '.join(told_words)})" if told_words else "",
        "beam": f"{report['search']['beam']}",
        "penalty": f"{report['search']['length_penalty']:g}",
        "mib": f"{size:.1f}",
        "scores": "\n".join(table),
        "alignment": "\n".join(["| `regard align` | AER, the other pairs | AER, all |", "|---|---|---|", *lines]),
        "attribution": attribution(counts, trained_on(model)).split("\n", 1)[1].strip(),
    }
    for name, text in blanks.items():
        template = template.replace("{" + name + "}", text)
    out.write_text(template, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--reverse", type=Path, help="a model from French to English, for alignment both ways")
    parser.add_argument("--corpora", type=Path, required=True, help="the folder that prepare.py read")
    parser.add_argument("--data", type=Path, default=Path("out/en-fr-small/data"))
    parser.add_argument("--out", type=Path, help="translations; default: beside the model, NAME-tested")
    parser.add_argument("--only", help="some of tatoeba, newstest2014, 'multi30k test2016', laws, align")
    parser.add_argument("--develop", type=int, default=100)
    parser.add_argument(
        "--pairs", type=int, help="of each test set so many, spread over it; give --out a place of its own"
    )
    parser.add_argument("--words", type=Path, help="a list of French words, to count those that were invented")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--device")
    parser.add_argument("--card", type=Path, help="write the model card here")
    options = parser.parse_args()
    from regard.tasks.translation.translator import load

    made: dict[str, Any] = {}

    def translator() -> Any:
        if "it" not in made:
            made["it"] = load(options.model, device=options.device)
        return made["it"]

    out = options.out or options.model.with_name(options.model.name + "-tested")
    of_this_model(out, options.model)
    wanted = options.only.split(",") if options.only else None
    search = {name: getattr(translator().search, name) for name in ("beam", "length_penalty")}
    size = sum(p.numel() for p in translator().model.parameters())
    report: dict[str, Any] = {"parameters": size, "search": search, "sets": {}}
    heard = french_words(options.data, options.words) if options.words else set()
    for name, pairs in test_sets(options.corpora, options.data).items():
        pairs = some_of(pairs, options.pairs)
        if wanted is None or name in wanted:
            outputs, seconds = translations(pairs, out / f"{name.replace(' ', '-')}.fr", translator, options)
            found = {"pairs": len(pairs), **scores(outputs, [fr for _, fr in pairs])}
            if heard:
                found |= invented(pairs, outputs, heard)
            if seconds is not None:
                found["seconds"] = round(seconds, 1)
            parts = sentence_by_sentence(pairs, outputs)
            if name == "tatoeba":
                parts |= seen_and_not(pairs, outputs, options.data)
            more = {f"{name}, {how}": one for how, one in parts.items()}
            for which, one in {name: found, **more}.items():
                report["sets"][which] = one
                print(f"{which}: {one}", flush=True)
    if (wanted is None or "align" in wanted) and (options.corpora / "hansards_word_alignment").is_dir():
        reverse = load(options.reverse, device=options.device) if options.reverse else None
        report["alignment"] = alignment(translator(), reverse, options.corpora, options.develop)
        for name, found in report["alignment"].items():
            if name != "every":
                print(f"AER, {name}: {found}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "scores.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.card:
        card(report, options.model, options.data, options.card)


if __name__ == "__main__":
    main()

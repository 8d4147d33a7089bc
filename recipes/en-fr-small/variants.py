"""More pairs from those of Tatoeba: shouted, carelessly typed, quoted, counted, and about people nobody has heard of.

A corpus of tidy sentences about Tom and Mary teaches a model to translate those. Users write "WHERE IS THE STATION?"
and "i dont know", and name themselves; newspapers quote, and count in thousands. What comes out for careless English is
tidy French; for a name, that name; for "3,000", 3 000, and for quotation marks, « ».
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence

Pair = tuple[str, str]

SHARES = {"shouted": 0.02, "careless": 0.06, "renamed": 0.6}  # of the pairs that can be
QUOTED = 0.1  # likewise
ADDRESSES = 0.08  # of the renamed
COUNTED = 12  # times each pair with one number
CURLY = 0.4  # of the quoted: “ ” for " "
_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
_STOP = re.compile(r"\s*[.!?]+$")
_NUMBER = re.compile(r"(?<![\w.,:/-])[2-9]\d{0,2}(?![\w.,:/%-]|\s*(?:[ap]\.?m|o'clock|h\b|heures?\b))")
_SAYS = {  # English verb → what someone did, and what he and she did after the quotation
    "said": ("a déclaré", "a-t-{} dit"),
    "added": ("a ajouté", "a-t-{} ajouté"),
    "explained": ("a expliqué", "a-t-{} expliqué"),
    "replied": ("a répondu", "a-t-{} répondu"),
    "asked": ("a demandé", "a-t-{} demandé"),
}

_STARTS = [*"bcdfgjklmnprstvwz", "br", "ch", "cr", "dr", "fr", "gr", "kl", "kr", "ph", "pr", "sch", "st", "th", "tr"]
_VOWELS = [*"aeiou", "ai", "au", "ea", "ee", "ia", "ie", "io", "oo", "ou"]
_ENDS = [*"lnrstkm", "nd", "ng", "rt", "ss", "st", "ck", "ll", "z", "x"]


def names(pairs: Iterable[Pair], least: int = 3) -> set[str]:
    """Words that stay as they are in translation, in at least so many pairs, and are hardly ever written small.

    >>> sorted(names([("I saw Tom.", "J'ai vu Tom."), ("Is Tom a Tiger?", "Tom est un tigre ?")], least=2))
    ['Tom']
    """
    same, small = Counter[str](), Counter[str]()
    for en, fr in pairs:
        same.update({*_NAME.findall(en)} & {*_NAME.findall(fr)})
        small.update(re.findall(r"\b[a-z]+\b", f"{en} {fr}"))
    return {name for name, times in same.items() if times >= least and 10 * small[name.lower()] <= times}


def invented(draw: random.Random, like: str) -> str:
    """A name that begins with a vowel where that one does, so that "d'Anna" and "de Tom" stay French.

    >>> invented(random.Random(1), "Tom")[0] in "AEIOUH"
    False
    """
    vowel = like[0] in "AEIOUH"
    parts = [draw.choice(_VOWELS)[0] + draw.choice(_ENDS)[0] if vowel else draw.choice(_STARTS)]
    for _ in range(draw.choice((1, 1, 2))):
        parts += [draw.choice(_VOWELS), draw.choice(_ENDS if draw.random() < 0.5 else _STARTS[:17])]
    if draw.random() < 0.4:
        parts.append(draw.choice("aeioy"))
    return "".join(parts).capitalize()


def address(draw: random.Random) -> str:
    """An e-mail address or the like, of invented parts; the domains are those reserved for examples."""
    who, where = (invented(draw, "Tom").lower() for _ in range(2))
    number = draw.choice(("", "", str(draw.randrange(100))))
    return draw.choice((f"{who}{number}@example.com", f"{who}.{where}@example.org", f"www.{where}.example.net"))


def shouted(pair: Pair) -> Pair:
    """
    >>> shouted(("Where is it?", "Où est-ce ?"))
    ('WHERE IS IT?', 'OÙ EST-CE ?')
    """
    return pair[0].upper(), pair[1].upper()


def careless(pair: Pair, draw: random.Random) -> Pair:
    """English in small letters, perhaps without what ends it (then the French too), perhaps with "dont" for "don't".

    >>> careless(("I don't know.", "Je ne sais pas."), random.Random(0))
    ("i don't know.", 'Je ne sais pas.')
    """
    en, fr = pair
    en = en.lower()
    if draw.random() < 0.5:
        en, fr = _STOP.sub("", en), _STOP.sub("", fr)
    if draw.random() < 0.3:
        en = re.sub(r"(n|\bi)'(?=[tm]\b)", r"\1", en)
    return en, fr


def renamed(pair: Pair, known: set[str], draw: random.Random) -> Pair | None:
    """Those who are named once in both have other names; None where nobody is.

    >>> renamed(("Call Tom.", "Appelle Tom."), {"Tom"}, random.Random(2))
    ('Call Trek.', 'Appelle Trek.')
    """
    sides = [Counter(_NAME.findall(text)) for text in pair]
    new = {}
    for name in sorted(known & sides[0].keys() & sides[1].keys()):
        if sides[0][name] == sides[1][name] == 1:
            new[name] = invented(draw, name)
            if draw.random() < 0.3:
                new[name] += " " + invented(draw, "Tom")
            elif draw.random() < ADDRESSES and name[0] not in "AEIOUH":
                new[name] = address(draw)
    if not new:
        return None
    en, fr = (_NAME.sub(lambda found: new.get(found.group(), found.group()), text) for text in pair)
    return en, fr


def quoted(pair: Pair, known: set[str], draw: random.Random) -> Pair | None:
    """Someone says it, before or after, or nobody; or only a name is quoted. None for what has such marks already.

    >>> quoted(("It is late.", "Il est tard."), set(), random.Random(2))
    ('"It is late," he said.', '« Il est tard », a-t-il dit.')
    """
    if re.search('["“”«»]', pair[0] + pair[1]) or not all(text[-1] in ".!?" for text in pair):
        return None
    marks = ("“", "”") if draw.random() < CURLY else ('"', '"')
    both = sorted(known & {*_NAME.findall(pair[0])} & {*_NAME.findall(pair[1])})
    if both and draw.random() < 0.15:
        name = re.compile(rf"\b{both[0]}\b")
        return name.sub(both[0].join(marks), pair[0]), name.sub(f"« {both[0]} »", pair[1])
    verb = "asked" if pair[0][-1] == "?" else draw.choice(("said", "said", "said", "added", "explained", "replied"))
    did, inverted = _SAYS[verb]
    he, il = draw.choice((("he", "il"), ("he", "il"), ("she", "elle")))
    who = invented(draw, draw.choice(("Tom", "Anna"))) + draw.choice(("", " " + invented(draw, "Tom")))
    en, fr = pair
    (open_en, close_en), said = marks, en[:-1] + "," if en[-1] == "." else en
    dit = re.sub(r"\s*\.$", "", fr)
    frames = (
        (f"{open_en}{said}{close_en} {he} {verb}.", f"« {dit} », {inverted.format(il)}."),
        (f"{open_en}{said}{close_en} {verb} {who}.", f"« {dit} », {did} {who}."),
        (f"{open_en}{said}{close_en} {who} {verb}.", f"« {dit} », {did} {who}."),
        (f"{who} {verb}{draw.choice(':,')} {open_en}{en}{close_en}", f"{who} {did} : « {fr} »"),
        (f"{he.capitalize()} {verb}{draw.choice(':,')} {open_en}{en}{close_en}", f"{il.capitalize()} {did} : « {fr} »"),
        (f"{open_en}{en}{close_en}", f"« {fr} »"),
    )
    return draw.choice(frames)


def counted(pair: Pair, draw: random.Random) -> Pair | None:
    """The one number that both have is a greater one, or one with decimals; None where there is no such number.

    >>> counted(("She has 30 cows.", "Elle a 30 vaches."), random.Random(0))
    ('She has 794,774 cows.', 'Elle a 794 774 vaches.')
    """
    found = [_NUMBER.findall(text) for text in pair]
    if found[0] != found[1] or len(found[0]) != 1 or any(len(re.findall(r"\d+", text)) != 1 for text in pair):
        return None
    number = draw.randrange(2, 10 ** draw.choice((2, 3, 5, 6, 7)))
    en, fr = f"{number:,}", f"{number:,}".replace(",", " ")
    if number < 1000 and draw.random() < 0.7:
        decimals = str(draw.randrange(1, draw.choice((10, 100))))
        en, fr = f"{en}.{decimals}", f"{fr},{decimals}"
    return _NUMBER.sub(en, pair[0]), _NUMBER.sub(fr, pair[1])


def variants(pairs: Sequence[Pair], seed: int = 0) -> list[Pair]:
    """Of each kind as many as SHARES says, in the order of the pairs; the same for the same seed."""
    known = names(pairs)
    draw = random.Random(seed)
    found = []
    for pair in pairs:
        if draw.random() < SHARES["shouted"]:
            found.append(shouted(pair))
        if draw.random() < SHARES["careless"]:
            found.append(careless(pair, draw))
        if draw.random() < SHARES["renamed"] and (other := renamed(pair, known, draw)):
            found.append(other)
    return found


def quotations(pairs: Sequence[Pair], seed: int = 0) -> list[Pair]:
    """A share of the pairs quoted, and each that has one number with others; the same for the same seed."""
    known = names(pairs)
    draw = random.Random(seed)
    found = []
    for pair in pairs:
        if draw.random() < QUOTED and (other := quoted(pair, known, draw)):
            found.append(other)
        found += [other for _ in range(COUNTED) if (other := counted(pair, draw))]
    return found

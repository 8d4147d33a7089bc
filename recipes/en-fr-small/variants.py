"""More pairs from those of Tatoeba: shouted, typed carelessly, quoted, counted, longer, of people nobody has heard of.

A corpus of tidy sentences about Tom and Mary teaches a model to translate those. Users write "WHERE IS THE STATION?"
and "i dont know", and name themselves; newspapers quote, count in thousands and millions, and write sentences three
times as long. What comes out for careless English is tidy French; for a name, that name; for "3,000", 3 000, and for
quotation marks, « ».
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
LONGER = 0.3  # of the pairs: what one longer sentence begins with
_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
_STOP = re.compile(r"\s*[.!?]+$")
_DOLLARS = (  # English and French
    re.compile(r"\$\d+(?!\d|[.,]\d| [mb]illion)|(?<![.,$])\b\d+ dollars\b"),
    re.compile(r"(?<![.,\d] )(?<![.,])\b\d+ ?(?:dollars\b|\$)"),
)
_NUMBER = re.compile(r"(?<![\w.,:/-])[2-9]\d{0,2}(?![\w.,:/%-]|\s*(?:[ap]\.?m|o'clock|h\b|heures?\b))")
_SAYS = {  # English verb → what someone did, and what he and she did after the quotation
    "said": ("a déclaré", "a-t-{} dit"),
    "added": ("a ajouté", "a-t-{} ajouté"),
    "explained": ("a expliqué", "a-t-{} expliqué"),
    "replied": ("a répondu", "a-t-{} répondu"),
    "asked": ("a demandé", "a-t-{} demandé"),
}

_MONTHS = (
    *(("January", "janvier"), ("February", "février"), ("March", "mars"), ("April", "avril"), ("May", "mai")),
    *(("June", "juin"), ("July", "juillet"), ("August", "août"), ("September", "septembre")),
    *(("October", "octobre"), ("November", "novembre"), ("December", "décembre")),
)
_DAYS = (
    *(("Monday", "lundi"), ("Tuesday", "mardi"), ("Wednesday", "mercredi"), ("Thursday", "jeudi")),
    *(("Friday", "vendredi"), ("Saturday", "samedi"), ("Sunday", "dimanche")),
)
_JOINED = (  # between two statements
    (", and ", ", et "),
    (" and ", " et "),
    (", but ", ", mais "),
    ("; ", " ; "),
    (", so ", ", donc "),
    (" because ", " parce que "),
    (", while ", ", tandis que "),
    (", although ", ", même si "),
)
_REPORTED = (  # before a statement
    ("said", "a déclaré"),
    ("said that", "a dit"),
    ("announced that", "a annoncé"),
    ("explained that", "a expliqué"),
    ("added that", "a ajouté"),
    ("believes that", "pense"),
    ("thinks", "pense"),
    ("told reporters that", "a déclaré aux journalistes"),
)

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
    if all(sum_.search(text) for sum_, text in zip(_DOLLARS, pair, strict=True)) and draw.random() < 0.5:
        return _priced(pair, draw)
    number = draw.randrange(2, 10 ** draw.choice((2, 3, 5, 6, 7)))
    en, fr = f"{number:,}", f"{number:,}".replace(",", " ")
    if number < 1000 and draw.random() < 0.7:
        decimals = str(draw.randrange(1, draw.choice((10, 100))))
        en, fr = f"{en}.{decimals}", f"{fr},{decimals}"
    return _NUMBER.sub(en, pair[0]), _NUMBER.sub(fr, pair[1])


def _priced(pair: Pair, draw: random.Random) -> Pair:
    """The one sum that both have in millions.

    >>> _priced(("It cost $30.", "Ça a coûté 30 dollars."), random.Random(0))
    ('It cost $79.6 million.', 'Ça a coûté 79,6 millions de dollars.')
    """
    number = f"{draw.randrange(2, 1000)}" if draw.random() < 0.4 else f"{draw.randrange(20, 1000) / 10:.1f}"
    million, millions = draw.choice((("million", "millions"), ("million", "millions"), ("billion", "milliards")))
    en = f"${number} {million}" if draw.random() < 0.8 else f"{number} {million} dollars"
    fr = f"{number.replace('.', ',')} {millions} de dollars"
    return _DOLLARS[0].sub(en, pair[0]), _DOLLARS[1].sub(fr, pair[1])


def inside(pair: Pair, known: set[str]) -> Pair | None:
    """Both as they stand inside a sentence: begun small, without the stop; None where that cannot be told.

    >>> inside(("It rains.", "Il pleut."), set()), inside(("Tom sings.", "Tom chante."), {"Tom"})
    (('it rains', 'il pleut'), ('Tom sings', 'Tom chante'))
    >>> inside(("I know it.", "J'en suis sûr."), set())
    ('I know it', "j'en suis sûr")
    """
    found = []
    for text in pair:
        first = re.match(r"\w+", text)
        if first is None or not re.fullmatch(r"[^.?!:;\"«»“”]+\.", text):
            return None
        word = first.group()
        stays = word in known or (word == "I" and text is pair[0]) or (word[:2].isupper() and len(word) > 1)
        found.append((text if stays else text[0].lower() + text[1:])[:-1].rstrip())
    return found[0], found[1]


def que(clause: str) -> str:
    """
    >>> que("il pleut"), que("tu viens")
    ("qu'il pleut", 'que tu viens')
    """
    return f"qu'{clause}" if re.match(r"(?!oui|onz)[aàâeéèêiîoôu]", clause.lower()) else f"que {clause}"


def longer(pair: Pair, other: Pair, known: set[str], draw: random.Random) -> Pair | None:
    """Two statements as one sentence, or one that is reported or dated; None where one of them cannot be.

    >>> longer(("It rains.", "Il pleut."), ("She sings.", "Elle chante."), set(), random.Random(4))
    ('It rains, so she sings.', 'Il pleut, donc elle chante.')
    """
    first, second = inside(pair, known), inside(other, known)
    if first is None or second is None:
        return None
    who = invented(draw, draw.choice(("Tom", "Tom", "Anna"))) + draw.choice(("", " " + invented(draw, "Tom")))
    verb, a_dit = draw.choice(_REPORTED)
    month, mois = draw.choice(_MONTHS)
    day, jour = draw.choice(_DAYS)
    date, year = draw.randrange(2, 29), draw.randrange(1900, 2030)
    both = _together(pair, second, draw)
    frames = (
        both,
        both,
        both,
        both,
        (f"{who} {verb} {first[0]}.", f"{who} {a_dit} {que(first[1])}."),
        (f"According to {who}, {first[0]}.", f"Selon {who}, {first[1]}."),
        (f"In {year}, {first[0]}.", f"En {year}, {first[1]}."),
        (f"In {month} {year}, {first[0]}.", f"En {mois} {year}, {first[1]}."),
        (f"On {month} {date}, {first[0]}.", f"Le {date} {mois}, {first[1]}."),
        (f"On {day}, {first[0]}.", f"{jour.capitalize()}, {first[1]}."),
        (f"{who} {verb} {first[0]} and {second[0]}.", f"{who} {a_dit} {que(first[1])} et {que(second[1])}."),
    )
    return draw.choice(frames)


def _together(pair: Pair, second: Pair, draw: random.Random) -> Pair:
    (begin, commence), (and_, et) = (re.sub(r"\s*\.$", "", text) for text in pair), draw.choice(_JOINED)
    clause = que(second[1]) if et.endswith("que ") else second[1]
    return f"{begin}{and_}{second[0]}.", f"{commence}{et.removesuffix('que ')}{clause}."


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


def longer_ones(pairs: Sequence[Pair], seed: int = 0) -> list[Pair]:
    """A share of the pairs made longer, each with one drawn from all; the same for the same seed."""
    known = names(pairs)
    draw = random.Random(seed)
    found = []
    for pair in pairs:
        if draw.random() < LONGER and (one := longer(pair, draw.choice(pairs), known, draw)):
            found.append(one)
    return found

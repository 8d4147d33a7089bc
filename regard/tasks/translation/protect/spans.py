"""What of a text no model is to translate: addresses, placeholders, tags, code, emoji, what the model cannot read."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

from regard.text.graphemes import clusters
from regard.text.subwords import Subwords

__all__ = ["Kind", "Protect", "Protection", "Span", "patterns"]

Kind = Literal["word", "number", "mark", "open", "close", "nothing"]
"""What a span is in its sentence: a word, a number, or a mark that the sentence is read without, such as an emoji or a
tag; the marks of a pair open and close what they enclose. Nothing is left of what cannot be seen."""

Protect = bool | str | Sequence[str]
"""The usual kinds, none, or the usual ones and regular expressions of one's own."""

LARGE = 500  # letters that a vocabulary spells of a script; there are more, and the others are read byte by byte

_NESTED = _BODY = r"[^{}\n]{0,200}"
for _ in range(3):  # braces within braces, as plural forms have them
    _NESTED = rf"{_BODY}(?:\{{{_NESTED}\}}{_BODY}){{0,20}}"
_TARGET = r"""[^()\s]*(?:\s+"[^"\n]{0,300}")?"""  # of a link, perhaps with a title
_SPACE = r"&(?:nbsp|ensp|emsp|thinsp|shy|\#160|\#xa0|\#8239|\#x202f);"  # which ends an address, as a space does
_ADDRESS = rf"""(?:(?!{_SPACE})[^\s<>"`|\\^])"""
_TOP = "com|org|net|edu|gov|mil|info|io|dev|app|eu|uk|fr|de|ca|ch|nl|jp|cn|ru|br|au"  # addresses may end in it
_USUAL = re.compile(
    rf"""
    (?P<word_fence> ^\s*(?:`{{3,}}|~{{3,}})[^`\s]*\s*$)
  | (?P<word_code> (?<!`)(?P<ticks>`+)(?!`).{{1,500}}?(?<!`)(?P=ticks)(?!`))
  | (?P<mark_comment> <!--.{{0,500}}?-->)
  | (?P<word_element> <(?P<element>code|kbd|samp|pre|script|style)\b[^<>]{{0,300}}>.{{0,1000}}?</(?P=element)>)
  | (?P<close_link> \]\({_TARGET}\))
  | (?P<open_link> !?\[(?=[^][\n]{{0,300}}\]\({_TARGET}\)))
  | (?P<word_wiki> \[\[[^][\n]{{1,200}}\]\])
  | (?P<word_url> (?<![a-z0-9+.-])
        (?:[a-z][a-z0-9+.-]{{0,20}}://|www\.|mailto:|(?:tel|doi|arxiv|urn):(?=[\w+])){_ADDRESS}+)
  | (?P<word_email> (?<![\w.+-])[\w.+-]{{1,64}}@[\w-]+(?:\.[\w-]+)+)
  | (?P<word_url_bare> (?<![\w.@/-])(?:[a-z0-9-]{{1,63}}\.){{1,6}}
        (?:(?-i:{_TOP})(?![\w@-])|[a-z]{{2,24}}(?=/\w))(?::\d+)?(?:[/?\#]{_ADDRESS}*)?)
  | (?P<word_colons> (?<![\w:])(?:[0-9a-f]{{1,4}}::?){{3,7}}[0-9a-f]{{1,4}}(?![\w:]))
  | (?P<word_path> (?<![\w\\])[a-z]:\\[^\s"<>|*?]*)
  | (?P<mark_escape> (?-i:(?:\\[nrt])+(?![a-z])))
  | (?P<word_backslash> (?<!\\)(?:\\+[\w$@]+(?:[.-]\w+)*)+)
  | (?P<word_braces> [$%\#]?\{{{_NESTED}\}})
  | (?P<word_named> (?<!\d)%\([^()\n]{{1,100}}\)[-+\#0]*\d*(?:\.\d+)?[a-z])
  | (?P<word_printf> (?<!\d)%(?:\d+\$)?[-+\#0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[jzt])?[diouxefgacspn@](?![a-z]))
  | (?P<word_percent> %% | (?<!\d)%[a-z_]\w*% | (?<!\d)%L?\d{{1,2}}(?!\w))
  | (?P<word_variable> (?<!\w)\$[a-z_]\w* | (?<!\w)__(?-i:[A-Z0-9_]{{1,100}})__(?!\w))
  | (?P<word_doubled> (?<![\w\#@<])(?:\#\#|@@|<<)[a-z_]\w{{0,100}}(?:\#\#|@@|>>))
  | (?P<word_uuid> (?<!\w)[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}(?!\w))
  | (?P<word_mixed> (?<!\w)(?=\w*(?:[0-9][a-z]+[0-9]|[a-z][0-9]+[a-z]))\w{{7,}})
  | (?P<word_scope> (?<![\w:])[a-z_]\w{{0,100}}(?:::[a-z_]\w{{0,100}})+(?:\(\))?)
  | (?P<word_call> (?<![\w.])[a-z_][\w.]{{0,100}}\(\))
  | (?P<word_camel> (?<!\w)(?-i:[a-z]{{2,40}}(?:[A-Z]{{1,40}}[a-z0-9]{{1,40}}){{1,20}})(?!\w))
  | (?P<mark_short> (?<![\w:]):[a-z][a-z0-9_+-]{{1,40}}:(?![\w:]))
  | (?P<mark_tab> (?<=\S)\t+(?=\S))
  | (?P<mark_space> {_SPACE})
  | (?P<word_entity> &(?:[a-z][a-z0-9]{{1,31}}|\#\d{{1,7}}|\#x[0-9a-f]{{1,6}});)
  | (?P<word_server> <[%?].{{0,500}}?[%?]>)
  | (?P<mark_void> <(?:br|hr|img|input|wbr|link|meta)\b[^<>]*> | <[a-z][^<>]*/>)
  | (?P<close_tag> </[a-z][^<>]*>)
  | (?P<open_tag> <[a-z][^<>]*>)
  | (?P<mark_line> ^\s*(?:\#{{1,6}}|[*+>])(?=\s))
  | (?P<mark_control> \x1b\[[0-?]*[\ -/]*[@-~] | [\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f])
    """,
    re.VERBOSE | re.IGNORECASE,
)
_EMPHASIS = re.compile(r"\*{1,3}|_{1,2}|~~")
_COUNTED = re.compile(
    r"%[^a-z(]*l*[diu] | (?:%\(|[$%\#]?\{+) \s* (?:\w*count|n|num\w*|nb\w*|total) \s* [:})].*",
    re.VERBOSE | re.IGNORECASE,
)
_GLUE = frozenset("_/\\=&+#@~.$%")
SECONDS = 1  # for a regular expression of the user's on one line
_JOINS = re.compile(r"[^\w\s,;'\"’()]{0,3}")
_OPENING = frozenset("\"'“«<[(`{$%*_~")  # what emphasis may begin with, besides letters
_CLOSERS = {")": "(", "]": "[", "}": "{"}


class Span(NamedTuple):
    """A stretch that is protected. ``read``: the model may be able to copy it as it is; ``mate`` is where the other
    mark of its pair starts.
    """

    start: int
    end: int
    kind: Kind
    read: bool = False
    mate: int = -1


class Protection:
    """Finds the spans of lines, for a model with these subwords.

    ``protect`` says which; expressions of one's own come first, and what they match is a word.

    >>> subwords = Subwords.learn([["a word"]], 270)
    >>> line = "<b>see</b> {name} at http://x.org/a?b=c, 王 😀"
    >>> [line[span.start:span.end] for span in Protection(subwords)(line)]
    ['<b>', '</b>', '{name}', 'http://x.org/a?b=c', '王', '😀']
    """

    def __init__(self, subwords: Subwords, protect: Protect = True) -> None:
        self._subwords, self._usual, self._own = subwords, protect is not False, patterns(protect)

    def __call__(self, line: str) -> list[Span]:
        """The spans of a line, in order; words have what is glued to them."""
        return _units(line, self.parts(line))

    def parts(self, line: str) -> list[Span]:
        """The same, each by itself."""
        found: list[Span] = []
        for pattern in self._own:
            _add(found, [Span(start, end, "word") for start, end in _places(pattern, line)])
        if self._usual:
            _add(found, _matches(line))
            _add(found, _emphasis(line, found))
            if not line.isascii():
                _add(found, self._strange(line, found))
            if not found and not any(map(str.isalnum, line)):
                found = [Span(len(line) - len(line.lstrip()), len(line.rstrip()), "mark")][: bool(line.strip())]
        return _pair_marks(line, found)

    # --- what the model has never read ---

    def _strange(self, line: str, found: Sequence[Span]) -> list[Span]:
        """Runs of emoji, and of characters that no subword spells; words with such letters as a whole."""
        runs: list[tuple[int, int, str]] = []
        at = 0
        for sign in clusters(line):
            runs.append((at, at + len(sign), self._class(sign)))
            at += len(sign)
        return [*_runs(line, runs, _places_of(found), self._is_copied)]

    def _class(self, sign: str) -> str:
        """e: emoji, n: not seen, l: letters that cannot be read, s: such signs, w: another of a word, "" else."""
        unread = [char for char in sign if self._is_unread(char)]
        if unread and _is_emoji(sign):
            return "e"
        if unread and all(unicodedata.category(char) == "Cf" for char in unread):
            return "n" if len(unread) == len(sign) else "w"
        letters = sign[0].isalnum() or any(unicodedata.category(char)[0] in "LMN" for char in unread)
        return ("l" if letters else "s") if unread else "w" if sign[0].isalnum() else ""

    def _is_unread(self, char: str) -> bool:
        if char.isascii() or char.isspace() or self._is_spelled(char):
            return False
        return not (char.isalpha() and self._scripts[_script(char)] >= LARGE)

    def _is_spelled(self, char: str) -> bool:
        known = self._subwords.characters
        return char in known or (self._subwords.lowercase and char.lower() in known)

    def _is_copied(self, text: str) -> bool:
        """Whether its letters are of scripts that the model reads: then it may spell them by their bytes."""
        return all(self._scripts[_script(char)] for char in text if char.isalpha())

    @cached_property
    def _scripts(self) -> Counter[str]:
        return Counter(_script(char) for char in self._subwords.characters if char.isalpha())


def _script(char: str) -> str:
    """The first word of its name, as in CYRILLIC SMALL LETTER A."""
    return unicodedata.name(char, "").split(" ")[0]


def _is_emoji(sign: str) -> bool:
    """Pictures, flags, keycaps, dingbats, and signs that are to be drawn as a picture."""
    return any("☀" <= char <= "➿" or "\U0001f000" <= char <= "\U0001faff" or char in "\ufe0f\u20e3" for char in sign)


def _runs(
    line: str, signs: Sequence[tuple[int, int, str]], taken: Collection[int], copied: Callable[[str], bool]
) -> Iterator[Span]:
    """Runs of signs of a class: letters with the word that they are in, and with one space between such words."""
    classes = "".join(" " if line[a] == " " else "." if a in taken else kind or "." for a, _, kind in signs)
    word = "(?<![lw])[lw]*l[lws]*"
    for match in re.finditer(rf"e+(?: e+)*|n+|(?:{word})(?: (?:{word}))*|s+", classes):
        (start, _, kind), end = signs[match.start()], signs[match.end() - 1][1]
        text = line[start:end]
        if kind in ("e", "n"):
            yield Span(start, end, "mark" if kind == "e" else "nothing")
        elif "l" not in match[0] and all(unicodedata.category(char)[0] == "P" for char in text):
            yield Span(start, end, "mark", read=True)
        else:
            yield Span(start, end, "word", read=copied(text))


# --- patterns ---


class Pattern(Protocol):
    """A compiled expression of ``regex``, as far as it is used here."""

    pattern: str

    def finditer(self, string: str, *, timeout: float) -> Iterator[re.Match[str]]:
        """Its matches; TimeoutError if they take longer."""


def patterns(protect: Protect) -> list[Pattern]:
    """The user's own regular expressions, compiled by ``regex``, whose matching can be given a time limit."""
    own = [protect] if isinstance(protect, str) else [] if isinstance(protect, bool) else protect
    if not isinstance(own, Sequence):
        raise ValueError(f"protect: expected true, false or regular expressions, got {own!r}")
    return [_compile(pattern) for pattern in own]


def _compile(pattern: object) -> Pattern:
    import regex

    if not isinstance(pattern, str):
        raise ValueError(f"protect: expected a regular expression, got {pattern!r}")
    try:
        compiled: Pattern = regex.compile(pattern)
        return compiled
    except regex.error as error:
        raise ValueError(f"protect: {pattern!r} is not a regular expression: {error}") from None


def _places(pattern: Pattern, line: str) -> list[tuple[int, int]]:
    """Where a pattern matches. A model folder may come from a stranger, and Python takes years for ``(a|aa)+$``."""
    try:
        return [match.span() for match in pattern.finditer(line, timeout=SECONDS)]
    except TimeoutError:
        raise ValueError(
            f"protect: {pattern.pattern!r} takes more than {SECONDS} s on a line of {len(line):,} characters: "
            "write it without repeats inside repeats"
        ) from None


def _add(found: list[Span], more: Iterator[Span] | Sequence[Span]) -> None:
    """Those that are not empty and overlap none that was found before, in order."""
    taken = _places_of(found)
    found += [span for span in more if span.start < span.end and taken.isdisjoint(range(span.start, span.end))]
    found.sort()


def _places_of(found: Sequence[Span]) -> set[int]:
    return {at for span in found for at in range(span.start, span.end)}


def _matches(line: str) -> Iterator[Span]:
    for match in _USUAL.finditer(line):
        name, kind = match.lastgroup or "", (match.lastgroup or "").split("_")[0]
        if name in ("ticks", "element"):
            kind = "word"
        start, end = match.span()
        if name in ("word_url", "word_url_bare", "word_path"):
            end = _address_end(line, start, end)
        if kind == "word" and _COUNTED.fullmatch(match[0]):
            kind = "number"
        yield Span(start, end, kind)  # type: ignore[arg-type]


def _address_end(line: str, start: int, end: int) -> int:
    """Without the punctuation of the sentence around it."""
    while end > start:
        last, rest = line[end - 1], line[start : end - 1]
        if last in _CLOSERS and rest.count(_CLOSERS[last]) > rest.count(last):
            break
        if last not in ".,;:!?'\"’”»*_" and last not in _CLOSERS:
            break
        end -= 1
    return end


def _emphasis(line: str, found: Sequence[Span]) -> list[Span]:
    """Markdown's signs of emphasis that open before a word or close after one, in pairs."""
    if not any(sign in line for sign in "*_~"):
        return []
    spans, taken = list[Span](), _places_of(found)
    stack: list[tuple[str, int]] = []
    for match in _EMPHASIS.finditer(line):
        (start, end), sign = match.span(), match[0]
        before, after = line[max(0, start - 1) : start], line[end : end + 1]
        if start in taken or after == sign[0]:
            continue
        if before.strip() and not after.isalnum() and any(sign == other for other, _ in stack):
            while (opened := stack.pop())[0] != sign:
                pass
            spans += [Span(opened[1], opened[1] + len(sign), "open"), Span(start, end, "close")]
        elif after.strip() and not before.isalnum() and (after.isalnum() or after in _OPENING):
            stack.append((sign, start))
    return spans


# --- pairs, and what belongs together ---


def _pair_marks(line: str, found: Sequence[Span]) -> list[Span]:
    """Marks that open and close, each with its mate. A tag without one is a mark; between words it is a word."""
    spans, stack, waiting = list(found), list[tuple[str, int]](), Counter[str]()
    for i, span in enumerate(found):
        if span.kind not in ("open", "close"):
            continue
        label = _label(line, span)
        if span.kind == "open":
            stack.append((label, i))
            waiting[label] += 1
        elif waiting[label]:
            last, mate = "", -1
            while last != label:
                last, mate = stack.pop()
                waiting[last] -= 1
            spans[mate] = spans[mate]._replace(mate=span.start)
            spans[i] = span._replace(mate=spans[mate].start)
    return [_alone(line, span) if span.kind in ("open", "close") and span.mate < 0 else span for span in spans]


def _label(line: str, span: Span) -> str:
    text = line[span.start : span.end]
    name = re.match(r"</?([a-zA-Z][^\s<>/]*)", text)
    return name[1].lower() if name else "[" if text[0] in "![]" else text


def _alone(line: str, span: Span) -> Span:
    before, after = line[: span.start], line[span.end :]
    apart = before[-1:].isspace() and before.strip() and not after[:1].isalnum() and after.strip()
    return span._replace(kind="word" if span.kind == "open" and apart else "mark")


def _units(line: str, parts: Sequence[Span]) -> list[Span]:
    """Words and numbers with what is glued to them, as in user_{id}, and with one another, as in {a}/{b}."""
    units: list[Span] = []
    for k, span in enumerate(parts):
        if span.kind not in ("word", "number"):
            units.append(span)
            continue
        last = units[-1] if units else None
        start = _reach(line, span.start, last.end if last else 0, -1)
        end = _reach(line, span.end, parts[k + 1].start if k + 1 < len(parts) else len(line), 1)
        kind: Kind = "number" if span.kind == "number" and (start, end) == span[:2] else "word"
        unit = Span(start, end, kind, span.read)
        if last and last.kind in ("word", "number") and _JOINS.fullmatch(line, last.end, start):
            unit = Span(last.start, end, "word", last.read and span.read)
            units.pop()
        units.append(unit)
    return units


def _reach(line: str, at: int, bound: int, step: Literal[-1, 1]) -> int:
    """How far what is glued to a span reaches before or behind it; the full stop of a sentence is not."""
    reached, place = at, at if step > 0 else at - 1
    while place != (bound if step > 0 else bound - 1) and (line[place].isalnum() or line[place] in _GLUE):
        if line[place] != ".":
            reached = place + 1 if step > 0 else place
        place += step
    return reached

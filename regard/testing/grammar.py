"""A toy grammar of English and French: sentence pairs with gold word alignments.

Both sides are built together, so every link is known. The French side has agreement in gender and number, adjectives
after the noun, two-word negation (ne … pas), elision (l', n', j', d'), contraction (du, des, au, aux), and pronouns
before the verb. Texts are in lower case, with spaces between tokens. Each English sentence has one French translation.

>>> for english, french, links in pairs(3, seed=5):
...     print(f"{english} | {french}")
the child does not talk to my boys . | l' enfant ne parle pas à mes garçons .
they do not see the old horses of the happy girls . | ils ne voient pas les vieux chevaux des filles heureuses .
my big birds do not like my birds . | mes grands oiseaux n' aiment pas mes oiseaux .
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

__all__ = ["Pair", "pairs"]


class Pair(NamedTuple):
    """Two sentences and the links between them: (English word, French word), counted from 0."""

    english: str
    french: str
    links: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Noun:
    """A noun; its ``kind`` limits it to sentences that make sense."""

    english: tuple[str, str]  # singular, plural
    french: tuple[str, str]
    feminine: bool
    kind: str


@dataclass(frozen=True)
class Adjective:
    """Here and below, ``a|b`` is b before a vowel, else a."""

    english: str
    french: tuple[tuple[str, str], tuple[str, str]]  # masculine and feminine, each singular and plural
    before: bool  # before the noun
    kinds: str


@dataclass(frozen=True)
class Verb:
    english: tuple[str, str]  # sees, see
    french: tuple[str, str, str]  # je vois, il voit, ils voient
    definite: bool = False  # takes a definite object


@dataclass(frozen=True)
class Subject:
    """The features that a verb and an adjective agree with."""

    person: int  # 0: I, 1: singular, 2: plural
    feminine: bool
    kind: str

    @property
    def plural(self) -> bool:
        return self.person == 2


NOUNS = (
    Noun(("girl", "girls"), ("fille", "filles"), True, "person"),
    Noun(("boy", "boys"), ("garçon", "garçons"), False, "person"),
    Noun(("child", "children"), ("enfant", "enfants"), False, "person"),
    Noun(("cat", "cats"), ("chat", "chats"), False, "animal"),
    Noun(("dog", "dogs"), ("chien", "chiens"), False, "animal"),
    Noun(("bird", "birds"), ("oiseau", "oiseaux"), False, "animal"),
    Noun(("horse", "horses"), ("cheval", "chevaux"), False, "animal"),
    Noun(("tree", "trees"), ("arbre", "arbres"), False, "thing"),
    Noun(("house", "houses"), ("maison", "maisons"), True, "place"),
    Noun(("school", "schools"), ("école", "écoles"), True, "place"),
    Noun(("garden", "gardens"), ("jardin", "jardins"), False, "place"),
    Noun(("car", "cars"), ("voiture", "voitures"), True, "place"),
)
ADJECTIVES = (
    Adjective("small", (("petit", "petits"), ("petite", "petites")), True, "person animal thing place"),
    Adjective("big", (("grand", "grands"), ("grande", "grandes")), True, "animal thing place"),
    Adjective("old", (("vieux|vieil", "vieux"), ("vieille", "vieilles")), True, "animal thing place"),
    Adjective("black", (("noir", "noirs"), ("noire", "noires")), False, "animal thing place"),
    Adjective("red", (("rouge", "rouges"), ("rouge", "rouges")), False, "thing place"),
    Adjective("happy", (("heureux", "heureux"), ("heureuse", "heureuses")), False, "person animal"),
)
TRANSITIVE = (
    Verb(("sees", "see"), ("vois", "voit", "voient")),
    Verb(("likes", "like"), ("aime", "aime", "aiment"), definite=True),
    Verb(("watches", "watch"), ("regarde", "regarde", "regardent")),
    Verb(("finds", "find"), ("trouve", "trouve", "trouvent")),
)
INTRANSITIVE = (
    Verb(("sings", "sing"), ("chante", "chante", "chantent")),
    Verb(("sleeps", "sleep"), ("dors", "dort", "dorment")),
)
TALK = Verb(("talks", "talk"), ("parle", "parle", "parlent"))
BE = Verb(("is", "are"), ("suis", "est", "sont"))
PRONOUNS = (
    ("i", "je|j'", Subject(0, False, "person")),
    ("he", "il", Subject(1, False, "person")),
    ("she", "elle", Subject(1, True, "person")),
    ("they", "ils", Subject(2, False, "person")),
)
OBJECTS = (("him", "le|l'"), ("her", "la|l'"), ("them", "les"))
# English and French, the latter masculine and feminine; singular, then plural
SINGULAR = {"the": ("le|l'", "la|l'"), "a": ("un", "une"), "this": ("ce|cet", "cette"), "my": ("mon", "ma|mon")}
PLURAL = {
    "the": ("les", "les"),
    "some": ("des", "des"),
    "these": ("ces", "ces"),
    "my": ("mes", "mes"),
    "two": ("deux", "deux"),
}
CONTRACTIONS = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
DEFINITE = ("the", "this", "these", "my")
ANIMATE = ("person", "animal")
ANYTHING = ("person", "animal", "thing", "place")


def pairs(n: int, seed: int = 0) -> list[Pair]:
    """``n`` distinct pairs, determined by the seed; a larger ``n`` extends the list of a smaller one.

    >>> english, french, links = pairs(1, seed=1)[0]
    >>> english, french
    ('my cat does not see the black horse .', 'mon chat ne voit pas le cheval noir .')
    >>> sorted(links)
    [(0, 0), (1, 1), (3, 2), (3, 4), (4, 3), (5, 5), (6, 7), (7, 6), (8, 8)]
    """
    if not 0 <= n <= 100_000:
        raise ValueError(f"n: expected 0 to 100,000 pairs, got {n}")
    random = Random(seed)
    found: dict[str, Pair] = {}
    while len(found) < n:
        pair = _Sentence(random).pair()
        found.setdefault(pair.english, pair)
    return list(found.values())


class _Sentence:
    """One random sentence: ``say`` adds an English word, ``dire`` a French word and the English words it translates."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.english: list[str] = []
        self.french: list[tuple[str, tuple[int, ...]]] = []
        random.choice((self.seeing, self.seeing, self.seeing_them, self.sleeping, self.talking, self.being))()
        self.dire(".", self.say("."))

    def say(self, word: str) -> int:
        """Add an English word; return its place."""
        self.english.append(word)
        return len(self.english) - 1

    def dire(self, word: str, *places: int) -> None:
        self.french.append((word, places))

    def pair(self) -> Pair:
        words = _contract(_elide(self.french))
        links = frozenset((place, j) for j, (_, places) in enumerate(words) for place in places)
        return Pair(" ".join(self.english), " ".join(word for word, _ in words), links)

    # --- sentences ---

    def seeing(self) -> None:
        """the girl does not see a big tree | la fille ne voit pas de grand arbre"""
        verb = self.random.choice(TRANSITIVE)
        negated = self.verb(self.subject(), verb)
        self.noun_phrase(ANYTHING, negated=negated, of=0.25, only=DEFINITE if verb.definite else ())

    def seeing_them(self) -> None:
        """i do not like him | je ne l' aime pas"""
        self.verb(self.subject(), self.random.choice(TRANSITIVE), self.random.choice(OBJECTS))

    def sleeping(self) -> None:
        """the cats sleep near the house | les chats dorment près de la maison"""
        self.verb(self.subject(), self.random.choice(INTRANSITIVE))
        if self.random.random() < 0.7:
            self.place()

    def talking(self) -> None:
        """they talk to the small children | ils parlent aux petits enfants"""
        self.verb(self.subject(), TALK)
        self.dire("à", self.say("to"))
        self.noun_phrase(ANIMATE)

    def being(self) -> None:
        """this house is not big | cette maison n' est pas grande"""
        kinds = ANIMATE if self.random.random() < 0.5 else ANYTHING
        subject = self.subject(kinds, pronouns=PRONOUNS[1:])
        self.verb(subject, BE)
        if subject.kind in ANIMATE and self.random.random() < 0.4:
            self.place()
            return
        adjective = self.random.choice([a for a in ADJECTIVES if subject.kind in a.kinds])
        self.dire(adjective.french[subject.feminine][subject.plural], self.say(adjective.english))

    # --- their parts ---

    def subject(
        self,
        kinds: tuple[str, ...] = ANIMATE,
        pronouns: tuple[tuple[str, str, Subject], ...] = PRONOUNS,
    ) -> Subject:
        if self.random.random() < 0.6:
            return self.noun_phrase(kinds)
        english, french, subject = self.random.choice(pronouns)
        self.dire(french, self.say(english))
        return subject

    def verb(self, subject: Subject, verb: Verb, pronoun: tuple[str, str] | None = None) -> bool:
        """Add the verb, and its object if a pronoun; return whether the verb is negated."""
        negated = self.random.random() < 0.35
        form = verb.english[subject.person != 1]
        if negated and verb is BE:
            done, no = self.say(form), self.say("not")
        elif negated:
            self.say("do" if subject.person != 1 else "does")
            no, done = self.say("not"), self.say(verb.english[1])
        else:
            done, no = self.say(form), -1
        if negated:
            self.dire("ne|n'", no)
        if pronoun:
            self.dire(pronoun[1], self.say(pronoun[0]))
        self.dire(verb.french[subject.person], done)
        if negated:
            self.dire("pas", no)
        return negated

    def noun_phrase(
        self,
        kinds: tuple[str, ...],
        *,
        negated: bool = False,
        of: float = 0.0,
        only: tuple[str, ...] = (),
    ) -> Subject:
        """Determiner, adjectives and noun; a negated verb's object has "de" instead of "un" or "des"."""
        noun = self.random.choice([noun for noun in NOUNS if noun.kind in kinds])
        plural = self.random.random() < 0.35
        choice = PLURAL if plural else SINGULAR
        determiner = self.random.choice([d for d in choice if not only or d in only])
        first, second = self.adjectives(noun)
        article = choice[determiner][noun.feminine]
        if (determiner in ("a", "some") and negated) or (determiner == "some" and first):
            article = "de|d'"
        an = determiner == "a" and first and first.english[0] in "aeiou"
        self.dire(article, self.say("an" if an else determiner))
        places = [self.say(adjective.english) for adjective in (first, second) if adjective]
        here = self.say(noun.english[plural])
        if first:
            self.dire(first.french[noun.feminine][plural], places[0])
        self.dire(noun.french[plural], here)
        if second:
            self.dire(second.french[noun.feminine][plural], places[-1])
        if self.random.random() < of:
            self.dire("de|d'", self.say("of"))
            self.noun_phrase(("person",), only=DEFINITE)
        return Subject(2 if plural else 1, noun.feminine, noun.kind)

    def adjectives(self, noun: Noun) -> tuple[Adjective | None, Adjective | None]:
        """An adjective before the French noun and one after it; either may be None."""
        fitting = [a for a in ADJECTIVES if noun.kind in a.kinds]
        first = self.random.choice([a for a in fitting if a.before]) if self.random.random() < 0.3 else None
        second = self.random.choice([a for a in fitting if not a.before]) if self.random.random() < 0.3 else None
        return first, second

    def place(self) -> None:
        """in the garden | dans le jardin; near the car | près de la voiture"""
        english, french = self.random.choice((("in", "dans"), ("behind", "derrière"), ("near", "près")))
        where = self.say(english)
        self.dire(french, where)
        if english == "near":
            self.dire("de|d'", where)
        self.noun_phrase(("place",) if english == "in" else ("place", "thing"), only=("a", *DEFINITE))


def _elide(words: list[tuple[str, tuple[int, ...]]]) -> list[tuple[str, tuple[int, ...]]]:
    """Resolve ``a|b`` to b before a vowel, else a; from the right, since a word depends on the next one's form."""
    out: list[tuple[str, tuple[int, ...]]] = []
    for word, places in reversed(words):
        forms = word.split("|")
        vowel = bool(out) and out[-1][0][0] in "aeéiou"
        out.append((forms[-1] if vowel else forms[0], places))
    return out[::-1]


def _contract(words: list[tuple[str, tuple[int, ...]]]) -> list[tuple[str, tuple[int, ...]]]:
    """Contract de le → du and so on; the result has the links of both words."""
    out: list[tuple[str, tuple[int, ...]]] = []
    for word, places in words:
        if out and (short := CONTRACTIONS.get((out[-1][0], word))):
            out[-1] = short, (*out[-1][1], *places)
        else:
            out.append((word, places))
    return out

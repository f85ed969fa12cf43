"""Perturbations: changed queries and relevant documents, where the gold is known.

Each leaves the meaning as it was (a typo, another wording), or changes how relevant the document is
in a known direction: an axiom of retrieval (TFC1, TDC, LNC1: Fang et al. 2004). Typos, orders and
added terms need texts alone; what is removed, the collection's gold spans; synonyms, paraphrases
and negations, the almanac's facts.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from datasets import Dataset

from data_modules.almanac import new_world
from data_modules.almanac.prose import WORDINGS, Question, ask, describe, with_article
from data_modules.almanac.world import Concept, Entry, World, table
from data_modules.collection import Collection
from gr_mvdr.evaluation.bm25 import split_words

Span = tuple[int, int]  # characters of a document's text, the end not included
_LETTERS = re.compile(r"[^\W\d_]{4,}")
_WORDS_A_TYPO = 10
_QUESTIONS, _ALL_QUESTIONS = 20, 10**6  # of an almanac's entry: in all splits, and that there are
_ATTEMPTS = 3  # at another wording


@dataclass(frozen=True)
class Pair:
    """A query and a document that is relevant to it.

    Attributes:
        id, query: of the query. document: with id, title and text.
        answer, given: where the text answers the query, and where it says what the query gives.
        shared: words of both, the rarest first, and in how many documents each is.
        further: words of the document alone, likewise.
        foreign: words of another document's sentence that the query lacks.
        world: of an almanac's pair. seed: of what is drawn.
    """

    id: str
    query: str
    document: Mapping[str, str]
    answer: Sequence[Span]
    given: Sequence[Span]
    shared: Mapping[str, int]
    further: Mapping[str, int]
    foreign: Sequence[str]
    world: World | None
    seed: int

    @property
    def text(self) -> str:
        return self.document["text"]

    @property
    def entry(self) -> Entry | None:
        """The almanac's entry, made once more; None of another collection."""
        return self.world and self.world.entry(int(self.document["id"][1:]))


def make_pairs(collection: Collection, split: str, queries: Dataset, seed: int = 0) -> list[Pair]:
    """Pairs of some queries of a split, each with the first document that is judged relevant.

    A document comes once, so that all of them can be changed at the same time. A query whose
    judgements leave no other document to compare with has no pair.
    """
    documents, grades = collection.documents, collection.judgements(split)
    rows = {name: row for row, name in enumerate(documents["id"][:])}
    frequency = Counter(word for row in documents for word in _words(row))
    made, pairs = collection.sources, {}
    almanac = collection.name.startswith("almanac-") and "generator" in made
    world = new_world(int(made["n_documents"]), int(made["seed"])) if almanac else None
    for query in queries:
        judged = grades[query["id"]]
        name = next((d for d, grade in judged.items() if grade > 0 and d in rows), None)
        others = sorted(rows.keys() - judged.keys())
        if name is None or name in pairs or not others:
            continue
        document, asked = documents[rows[name]], {*split_words(query["text"])}
        other = Random(f"{seed} {query['id']}").choice(others)
        sentence = documents[rows[other]]["text"].partition(". ")[2].partition(". ")[0].split()
        gold, given = (
            [(span["start"], span["end"]) for span in query.get(column) or ()]
            for column in ("gold", "evidence")
        )
        every = sorted(_words(document), key=lambda word: (frequency[word], word))
        pairs[name] = Pair(
            id=query["id"],
            query=query["text"],
            document=document,
            answer=_find_again(document["text"], gold),
            given=given,
            shared={word: frequency[word] for word in every if word in asked},
            further={word: frequency[word] for word in every if word not in asked},
            foreign=[word for word in sentence if asked.isdisjoint(split_words(word))],
            world=world,
            seed=seed,
        )
    return list(pairs.values())


def _words(document: Mapping[str, str]) -> set[str]:
    return {*split_words(f"{document['title']} {document['text']}")}


def _find_again(text: str, spans: Sequence[Span]) -> list[Span]:
    """Every place where a text says what it says in some of them."""
    said = {re.escape(text[start:end]) for start, end in spans}
    return [match.span() for words in said for match in re.finditer(rf"(?<!\w){words}(?!\w)", text)]


def misspell(text: str, draw: Random) -> str:
    """Two neighbouring letters within a word exchanged, in one word and one more for every ten."""
    letters, found = list(text), []
    for word in _LETTERS.finditer(text):
        inner = range(word.start() + 1, word.end() - 2)
        if places := [place for place in inner if text[place] != text[place + 1]]:
            found.append(places)
    wanted = 1 + len(text.split()) // _WORDS_A_TYPO
    for places in draw.sample(found, min(wanted, len(found))):
        place = draw.choice(places)
        letters[place : place + 2] = letters[place + 1], letters[place]
    return "".join(letters)


def shuffle(text: str, draw: Random) -> str:
    """The words in another order."""
    words = text.split()
    return " ".join(draw.sample(words, len(words)))


def _extend(text: str, words: Sequence[str]) -> str:
    return " ".join([text, *words])


def _commonest(words: Mapping[str, int]) -> list[str]:
    """The commonest of some words; none where all are as rare."""
    *_, last = words or {"": 0}
    return [last] if words and words[last] > min(words.values()) else []


def remove(text: str, spans: Sequence[Span]) -> str:
    """A text without some of its characters."""
    gone = {place for start, end in spans for place in range(start, end)}
    return " ".join("".join(c for n, c in enumerate(text) if n not in gone).split())


@cache
def _wordings() -> tuple[dict[str, Concept], re.Pattern[str]]:
    """Each wording of the almanac's concepts that have several, and a pattern of all of them."""

    def find(value: Any) -> list[Concept]:
        if isinstance(value, str):
            return [Concept(value.split(" / "))] if " / " in value else []
        parts = value.values() if isinstance(value, dict) else value
        return [concept for part in parts for concept in find(part)]

    trades = [(trade["professions"], trade["objects"]) for trade in table("concepts")["trades"]]
    forms = {form: c for c in find([table("concepts")["concepts"], trades]) for form in c}
    longest = sorted(map(re.escape, forms), key=len, reverse=True)
    return forms, re.compile(rf"\b(an? )??({'|'.join(longest)})\b")


def _say_otherwise(pair: Pair, text: str) -> str | None:
    """Every concept by its next wording."""
    forms, pattern = _wordings()

    def change(match: re.Match[str]) -> str:
        concept = forms[match[2]]
        words = concept.form(concept.index(match[2]) + 1)
        return with_article(words) if match[1] else words

    return pattern.sub(change, text) if pair.world else None


def _reword(entry: Entry, number: int) -> Entry:
    """The entry with its facts, whose sentences and questions are worded by other draws."""
    describe(entry)  # from now on its facts are there, whatever is drawn
    own, kept = entry.draw, ("plan", "aside")  # they choose what is told
    entry.__dict__["draw"] = lambda name: own(name if name in kept else f"{name}, {number}")
    return entry


def _ask_otherwise(pair: Pair) -> str | None:
    """A question that gives and asks the same, in another sentence."""

    def questions(entry: Entry, wanted: int) -> list[Question]:
        return ask(entry, describe(entry), wanted)

    def facts(question: Question) -> tuple[set[str], str]:
        return {*question.plan.given} - {"noun"}, question.plan.asked

    if pair.entry is None:
        return None
    own = next((q for q in questions(pair.entry, _QUESTIONS) if q.text == pair.query), None)
    for number in range(_ATTEMPTS if own else 0):
        for other in questions(_reword(pair.entry, number), _ALL_QUESTIONS):
            if facts(other) == facts(own) and other.text != own.text:
                return other.text
    return None


def _negate(pair: Pair) -> str | None:
    """The question about any other of its kind: "… any poem but the one that …"."""
    if (entry := pair.entry) is None:
        return None
    nouns = "|".join(map(re.escape, entry.noun))
    who = WORDINGS["relative"].get(entry.kind, "that")
    text = re.sub(rf"^Which ({nouns}) (.*)\?$", rf"Name the \1 {who} \2.", pair.query)
    described = re.sub(rf"\bthe ({nouns}) {who} ", rf"any \1 but the one {who} ", text)
    named = rf"(?:\bthe )?(?:\b(?:{nouns}) )?(?:\b(?:called|of) )?{re.escape(entry.name)}"
    other = f"any {entry.noun[0]} but {entry.name}"
    return described if described != text else re.sub(named, lambda _: other, pair.query, count=1)


# Of a query, and of a document's text: what is said in its place; None where there is nothing.
PERTURBATIONS: dict[str, dict[str, Callable[[Pair, Random], str | None]]] = {
    "query": {
        "typo": lambda pair, draw: misspell(pair.query, draw),
        "word order": lambda pair, draw: shuffle(pair.query, draw),
        "synonyms": lambda pair, _: _say_otherwise(pair, pair.query),
        "paraphrase": lambda pair, _: _ask_otherwise(pair),
        "negation": lambda pair, _: _negate(pair),
        "rare term": lambda pair, _: _extend(pair.query, [*pair.further][:1]),
        "common term": lambda pair, _: _extend(pair.query, _commonest(pair.further)),
    },
    "document": {
        "typo": lambda pair, draw: misspell(pair.text, draw),
        "word order": lambda pair, draw: shuffle(pair.text, draw),
        "synonyms": lambda pair, _: _say_otherwise(pair, pair.text),
        "paraphrase": lambda p, _: describe(_reword(p.entry, 0)).text if p.entry else None,
        "rare query term": lambda pair, _: _extend(pair.text, [*pair.shared][:1]),
        "common query term": lambda pair, _: _extend(pair.text, _commonest(pair.shared)),
        "foreign words": lambda pair, _: _extend(pair.text, pair.foreign),
        "without the answer": lambda pair, _: remove(pair.text, pair.answer),
        "without the given": lambda pair, _: remove(pair.text, pair.given),
    },
}


def perturb(pair: Pair, side: str) -> dict[str, str]:
    """Name → text of every perturbation of a pair's query or document that changes it."""
    own = {"query": pair.query, "document": pair.text}[side]
    draw = {n: Random(f"{pair.seed} {pair.id} {side} {n}") for n in PERTURBATIONS[side]}
    said = {name: change(pair, draw[name]) for name, change in PERTURBATIONS[side].items()}
    return {name: text for name, text in said.items() if text and text.split() != own.split()}

"""Axioms and perturbations: how does a system react to typos, word orders, and added terms?

Queries or their relevant documents are perturbed, and the score and the rank of the relevant
document are measured again. A perturbation either keeps the meaning (a typo) or changes the
relevance in a known direction, as an axiom of retrieval states (TFC1, TDC, LNC1: Fang et al. 2004).
Typos, word orders, stopwords and added terms need only the texts; negations need the almanac's
facts.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from random import Random
from typing import Annotated, Any, Literal

import pandas
import torch
from datasets import Dataset
from matplotlib.figure import Figure
from pandas import DataFrame

from analysis.figures import GalleryEntry, forest_figure
from analysis.questions.analysis import Analysis, Findings, Subject
from analysis.runs.evaluation import judge
from analysis.statistics import mean_table
from data_modules.almanac.world import Entry, World
from data_modules.collection import Collection
from data_modules.seal_examples import STOPWORDS
from gr_mvdr.analyzer import split_words
from gr_mvdr.measures import Metric
from gr_mvdr.options import AtLeast, Count, part
from gr_mvdr.passages import document_ids
from gr_mvdr.progress import track
from gr_mvdr.texts import TextTable
from models.retriever import Retriever
from models.saved_model import make_reader

_LETTERS = re.compile(r"[^\W\d_]{4,}")
_WORDS_A_TYPO = 10


@dataclass
class Pair:
    """A query and a document that is relevant to it.

    Attributes:
        id, query: the query's id and text.
        document: `id`, `title` and `text`.
        shared: words of both query and document → document frequency, rarest first.
        further: words of the document alone → document frequency, rarest first.
        foreign: words of a sentence of another document that the query does not contain.
        entry: the almanac's entry that the document describes; None for other collections.
        texts: perturbation → the text that replaces the query or the document's text.
        others: ids of documents that are not relevant.
    """

    id: str
    query: str
    document: Mapping[str, str]
    shared: Mapping[str, int]
    further: Mapping[str, int]
    foreign: Sequence[str]
    entry: Entry | None
    texts: Mapping[str, str] = field(default_factory=dict)
    others: Sequence[str] = ()

    @property
    def text(self) -> str:
        return self.document["text"]


def make_pairs(collection: Collection, split: str, queries: Dataset) -> list[Pair]:
    """Pairs each query with the first document that is judged relevant to it.

    Each document occurs in one pair only, so that all documents can be changed at the same time.
    A query is skipped if every document is judged for it, since none is left to compare with.
    """
    documents, grades = collection.documents, collection.judgements(split)
    rows = {name: row for row, name in enumerate(documents["id"][:])}
    frequency = Counter(word for row in documents for word in _words(row))
    made, pairs = collection.sources, {}
    almanac = collection.name.startswith("almanac-") and "generator" in made
    world = World(int(made["n_documents"]), int(made["seed"])) if almanac else None
    for query in queries:
        judged = grades[query["id"]]
        name = next((d for d, grade in judged.items() if grade > 0 and d in rows), None)
        others = sorted(rows.keys() - judged.keys())
        if name is None or name in pairs or not others:
            continue
        document, asked = documents[rows[name]], {*split_words(query["text"])}
        other = Random(f"0 {query['id']}").choice(others)
        sentence = documents[rows[other]]["text"].partition(". ")[2].partition(". ")[0].split()
        every = sorted(_words(document), key=lambda word: (frequency[word], word))
        pairs[name] = Pair(
            id=query["id"],
            query=query["text"],
            document=document,
            shared={word: frequency[word] for word in every if word in asked},
            further={word: frequency[word] for word in every if word not in asked},
            foreign=[word for word in sentence if asked.isdisjoint(split_words(word))],
            entry=world.entry(int(name[1:])) if world else None,
        )
    return list(pairs.values())


def _words(document: Mapping[str, str]) -> set[str]:
    return {*split_words(f"{document['title']} {document['text']}")}


def misspell(text: str, draw: Random) -> str:
    """Swaps two neighbouring inner letters in one word, and in one more for every ten words."""
    letters, words = list(text), []
    for word in _LETTERS.finditer(text):
        inner = range(word.start() + 1, word.end() - 2)
        if places := [place for place in inner if text[place] != text[place + 1]]:
            words.append(places)
    wanted = 1 + len(text.split()) // _WORDS_A_TYPO
    for places in draw.sample(words, min(wanted, len(words))):
        place = draw.choice(places)
        letters[place : place + 2] = letters[place + 1], letters[place]
    return "".join(letters)


def shuffle(text: str, draw: Random) -> str:
    """Shuffles the words."""
    words = text.split()
    return " ".join(draw.sample(words, len(words)))


def _drop_stopwords(text: str) -> str:
    """Drops the words of `STOPWORDS`: a question as keywords."""
    return " ".join(word for word in text.split() if word.lower().strip("?,.") not in STOPWORDS)


def _extend(text: str, words: Sequence[str]) -> str:
    return " ".join([text, *words])


def _commonest(words: Mapping[str, int]) -> list[str]:
    """Returns the most frequent of some words, or nothing if all are equally rare."""
    *_, last = words or {"": 0}
    return [last] if words and words[last] > min(words.values()) else []


def _negate(pair: Pair) -> str | None:
    """Asks for any other entry of the kind: "… any poem but the one that …"."""
    if (entry := pair.entry) is None:
        return None
    nouns, who = "|".join(map(re.escape, entry.noun[0])), entry.facts["who"]
    described = re.sub(rf"\bthe ({nouns}) {who} ", rf"any \1 but the one {who} ", pair.query)
    if described != pair.query:
        return described
    named = rf"(?:\bthe )?(?:\b(?:{nouns}) )?(?:\b(?:called|of) )?{re.escape(entry.name)}"
    other = f"any {entry.noun.form(0)} but {entry.name}"
    return re.sub(named, lambda _: other, pair.query, count=1)


# Perturbation → the text that replaces a query or a document's text; None if it does not apply.
PERTURBATIONS: dict[str, Callable[[Pair, Random], str | None]] = {
    "query_typo": lambda pair, draw: misspell(pair.query, draw),
    "query_word_order": lambda pair, draw: shuffle(pair.query, draw),
    "query_without_stopwords": lambda pair, _: _drop_stopwords(pair.query),
    "query_negation": lambda pair, _: _negate(pair),
    "query_rare_term": lambda pair, _: _extend(pair.query, [*pair.further][:1]),
    "query_common_term": lambda pair, _: _extend(pair.query, _commonest(pair.further)),
    "document_rare_query_term": lambda pair, _: _extend(pair.text, [*pair.shared][:1]),
    "document_common_query_term": lambda pair, _: _extend(pair.text, _commonest(pair.shared)),
    "document_foreign_words": lambda pair, _: _extend(pair.text, pair.foreign),
}


def perturb(pair: Pair) -> dict[str, str]:
    """Returns name → text for every perturbation that changes the pair's query or document."""
    texts = {}
    for name, change in PERTURBATIONS.items():
        own = pair.query if name.startswith("query") else pair.text
        text = change(pair, Random(f"0 {pair.id} {name}"))
        if text and text.split() != own.split():
            texts[name] = text
    return texts


ORIGINAL = "original"
DEPTH = 100  # documents that a search returns
METRIC = "mrr@10"
# Overlap with the documents before → whose ranking it is of, and how many first documents count.
OVERLAPS = {
    "overlap@10": ("system", 10),
    "plan_overlap@10": ("plan", 10),
    f"plan_overlap@{DEPTH}": ("plan", DEPTH),
}
# Axiom → the variant that should score higher, and the variant that should score lower.
AXIOMS = {
    "tfc1": ("document_rare_query_term", ORIGINAL),
    "tdc": ("document_rare_query_term", "document_common_query_term"),
    "tdc_of_the_query": ("query_rare_term", "query_common_term"),
    "lnc1": (ORIGINAL, "document_foreign_words"),
    "negation": (ORIGINAL, "query_negation"),
}


@part("analysis")
@dataclass
class Axioms(Analysis):
    """Perturbs test queries or their relevant documents, and scores and searches again.

    Changed documents replace the originals in the index; like all documents that are added later,
    they have no pseudo-queries. A system that scores identifiers does not read texts, so only its
    queries are changed.

    Args:
        queries: the maximum number of pairs of a query and a relevant document.
        others: the number of randomly drawn documents whose scores the relevant document's score
            is compared with. They are random since the scores of a system's best documents lie
            closer together.
        side: "query" or "document" = only its perturbations; None = all.
    """

    queries: Count
    others: Annotated[int, AtLeast(2)] = 30
    side: Literal["query", "document"] | None = None

    name, title = "axioms", "Axioms and perturbations"
    reading = (
        "Queries or their relevant documents are perturbed. How far does the relevant document's "
        "score move, what happens to the ranking, and in how many pairs does an axiom hold?"
    )
    metrics = (
        Metric("holds", "The share of pairs in which the axiom holds."),
        Metric(
            "shift",
            "The change of the relevant document's score, counted from the mean of other documents "
            "in standard deviations of their scores.",
        ),
        Metric(f"{METRIC}_change", "The change of MRR@10.", label="change of MRR@10"),
        *(
            Metric(
                name,
                "The Jaccard overlap of the first k documents before and after the perturbation; "
                "of the plan: of the ranking that guides the beam of a planned search.",
            )
            for name in OVERLAPS
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return True

    def finish(self) -> Findings:
        """Returns the effects of perturbations and the axioms' shares, a table and a figure."""
        if not (pairs := self._draw_pairs()):
            return Findings()
        effects = find_effects(self._measure(pairs)).assign(pairs=1)
        if effects.empty:
            return Findings()
        keys = ["perturbation", "measure"]
        table = mean_table(effects, keys, ["value"], "pairs").set_index(keys)
        table = table.loc[effects.set_index(keys).index.unique()]  # the order of the perturbations
        declared = {metric.name: metric for metric in self.metrics}
        numbers = [
            declared[measure].row(
                row.value, name, low=row.value_low, high=row.value_high, n=row.pairs
            )
            for (name, measure), row in zip(table.index, table.itertuples(), strict=True)
        ]
        table = table.reset_index()
        title = f"{self.subject.data.collection.name}: {self.title.lower()}"
        figures = [(axioms_figure(table, title), GalleryEntry("axioms", self.title, CAPTION))]
        return self.findings(numbers, {"axioms": table.to_dict("records")}, figures)

    def _draw_pairs(self) -> list[Pair]:
        """Draws pairs, with their perturbations and random non-relevant documents."""
        data, split = self.subject.data, self.subject.split
        chosen, documents = self.subject.queries(self.queries), data.collection.documents["id"][:]
        grades = data.evaluation.judgements(split, chosen)
        # One document is never changed, so that the index is not empty while others are exchanged.
        pairs = make_pairs(data.collection, split, chosen)[: len(documents) - 1]
        for pair in track(pairs, "perturbing"):
            pair.texts = perturb(pair)
            rest = [name for name in documents if name not in grades[pair.id]]
            pair.others = Random(pair.id).sample(rest, min(self.others, len(rest)))
        return pairs

    def _measure(self, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
        """Measures scores, the metric and overlaps of every pair under every perturbation."""
        retriever = self._retriever()
        rows = self._ask(retriever, ORIGINAL, pairs)
        first = {row["pair"]: row for row in rows}
        for name in track(PERTURBATIONS, "measuring perturbed texts"):
            changed = [p for p in pairs if name in p.texts and name.startswith(self.side or "")]
            if name.startswith("query"):
                rows += self._ask(retriever, name, changed)
            elif changed and retriever.system.scores_texts:
                with self._replaced(name, changed) as other:
                    rows += self._ask(other, name, changed)
        for row in rows[::-1]:  # the originals, which the others are compared with, come last
            for name in OVERLAPS.keys() & row.keys():
                now, before = row[name], first[row["pair"]][name]
                row[name] = len(now & before) / len(now | before) if now else float(not before)
        return rows

    def _retriever(self) -> Retriever:
        model, data = self.subject.model, self.subject.data
        return Retriever(model, make_reader(data), data.documents, data=data)

    def _ask(self, retriever: Retriever, name: str, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
        """Returns one row per pair: the scores of its relevant and its other documents, its metric,
        and the set of first documents of each ranking of `OVERLAPS`.
        """
        if not pairs:
            return []
        asked = name.startswith("query")
        queries = {pair.id: pair.texts[name] if asked else pair.query for pair in pairs}
        scored = retriever.rerank(queries, {p.id: [p.document["id"], *p.others] for p in pairs})
        rankings = {"system": retriever.retrieve(queries, DEPTH)}
        if (plan := getattr(retriever.system, "plan", None)) is not None:
            own = Retriever(plan.stage.model, retriever.reader, retriever.documents)
            rankings["plan"] = own.retrieve(queries, DEPTH)
        table = TextTable({"id": [*queries]})
        judged = judge(rankings["system"], self.subject.data, self.subject.split, table, (METRIC,))
        rows = []
        for pair in pairs:
            scores = {name: s for name, s in scored.scores(pair.id).items() if isfinite(s)}
            relevant = scores.pop(pair.document["id"], float("nan"))
            others = torch.tensor([*scores.values()], dtype=torch.float64)
            row = {"pair": pair.id, "perturbation": name, "score": relevant}
            row |= {"mean": float(others.mean()), "deviation": float(others.std())}
            for overlap, (ranker, depth) in OVERLAPS.items():
                if ranker in rankings:
                    row[overlap] = {*rankings[ranker].documents(pair.id)[:depth]}
            rows.append(row | {METRIC: judged[pair.id][METRIC]})
        return rows

    @contextmanager
    def _replaced(self, name: str, pairs: Sequence[Pair]) -> Iterator[Retriever]:
        """Inside the block, the index holds the perturbed documents of the pairs."""
        retriever, documents = self._retriever(), self.subject.data.documents
        ids = [pair.document["id"] for pair in pairs]
        try:
            retriever.remove(ids)
            retriever.add([{**pair.document, "text": pair.texts[name]} for pair in pairs])
            yield retriever
        finally:  # an index keeps documents whose ids it knows, so the changed ones leave it first
            kept = [row for row, one in enumerate(document_ids(documents)) if one not in {*ids}]
            with torch.random.fork_rng():
                for table in (documents.select(kept), documents):
                    retriever.system.update_index(table)


def find_effects(rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Computes the effect of each perturbation on each pair, and whether each axiom holds for it.

    A score counts from the mean of the other documents, in standard deviations of their scores:
    another query shifts and stretches all scores, and systems have scales of their own.

    Args:
        rows: as `Axioms._ask` returns them, with overlaps as numbers.

    Returns:
        Rows of pair, perturbation (or axiom), measure and value.
    """
    rows = DataFrame(rows).set_index(["pair", "perturbation"])
    rows = rows.reindex(columns=["score", "mean", "deviation", METRIC, *OVERLAPS])
    first = rows.xs(ORIGINAL, level="perturbation").reindex(rows.index.droplevel("perturbation"))
    first, names = first.set_axis(rows.index), rows.index.get_level_values("perturbation")
    # The other documents may belong to other pairs, whose documents are changed as well.
    of_queries = names.str.startswith("query")
    mean, unit = (rows[name].where(of_queries, first[name]) for name in ("mean", "deviation"))
    before = (first["score"] - first["mean"]) / first["deviation"].where(first["deviation"] > 0)
    shifts = (rows["score"] - mean) / unit.where(unit > 0) - before
    effects = rows[[*OVERLAPS]].assign(shift=shifts)
    effects[f"{METRIC}_change"] = rows[METRIC] - first[METRIC]
    found = [effects[names != ORIGINAL].melt(ignore_index=False, var_name="measure")]
    by_name = shifts.unstack(sort=False)
    for axiom, (higher, lower) in AXIOMS.items():
        if {higher, lower} <= {*by_name}:
            both = by_name[[higher, lower]].dropna()
            holds = (both[higher] > both[lower]).astype(float).to_frame("value")
            holds = holds.assign(perturbation=axiom, measure="holds")
            found.append(holds.set_index("perturbation", append=True))
    return pandas.concat(found).dropna().reset_index()


PANELS = {
    "overlap@10": "overlap of the\nfirst ten documents",
    "shift": "change of the score",
    f"{METRIC}_change": "change of MRR@10",
}
CAPTION = (
    "Left: 1 if the first ten documents stay the same. Middle: in standard deviations of other "
    "documents' scores. Bars are 95 % intervals over pairs of a query and a relevant document."
)


def axioms_figure(table: DataFrame, title: str) -> Figure:
    """Draws a row for each perturbation and a panel for each measure of `PANELS`."""
    marks = table.rename(columns={"value_low": "low", "value_high": "high"})
    marks = marks.assign(place=marks["measure"].map(PANELS)).dropna(subset="place")
    return forest_figure(marks.assign(name=marks["perturbation"].str.replace("_", " ")), title)

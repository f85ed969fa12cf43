"""Axioms and perturbations: ``python -m analysis.axioms runs='[outputs/a,outputs/b]'``.

The command perturbs queries or their relevant documents and measures, in every run, how the score
and the rank of the relevant document change. A perturbation either keeps the meaning (a typo) or
changes the relevance in a known direction, as an axiom of retrieval states (TFC1, TDC, LNC1: Fang
et al. 2004). Typos, word orders, stopwords and added terms need only the texts; removals need the
collection's gold spans; negations need the almanac's facts.
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("axioms", "analysis.axioms:main")
    raise SystemExit

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from math import isfinite
from pathlib import Path
from random import Random

import pandas
import torch
from datasets import Dataset
from matplotlib.figure import Figure
from omegaconf import DictConfig
from pandas import DataFrame

from analysis.evaluation import judge
from analysis.figures import COLOURS, MARKERS, forest_figure, save_figure
from analysis.runs.run_folder import named_folders
from analysis.statistics import interval
from analysis.tables.comparison import Comparison, compare_runs, place_tables
from analysis.tables.rows import Row, Table, pivot, read_rows, write_rows, write_tables
from data_modules.almanac.prose import WORDINGS
from data_modules.almanac.world import Entry, World
from data_modules.collection import Collection
from data_modules.module import RetrievalDataModule
from data_modules.seal_examples import STOPWORDS
from data_modules.tables import sample_rows, short_hash
from gr_mvdr.evaluation.bm25 import split_words
from gr_mvdr.progress import track
from gr_mvdr.texts import TextTable
from models.retriever import Retriever

Span = tuple[int, int]  # characters [start, end) of a document's text
_LETTERS = re.compile(r"[^\W\d_]{4,}")
_WORDS_A_TYPO = 10


@dataclass
class Pair:
    """A query and a document that is relevant to it.

    Attributes:
        id, query: the query's id and text.
        document: `id`, `title` and `text`.
        answer, given: where the text answers the query, and where it states what the query gives.
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
    answer: Sequence[Span]
    given: Sequence[Span]
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
            entry=world.entry(int(name[1:])) if world else None,
        )
    return list(pairs.values())


def _words(document: Mapping[str, str]) -> set[str]:
    return {*split_words(f"{document['title']} {document['text']}")}


def _find_again(text: str, spans: Sequence[Span]) -> list[Span]:
    """Returns every place where the text repeats the wording of one of the spans."""
    said = {re.escape(text[start:end]) for start, end in spans}
    return [match.span() for words in said for match in re.finditer(rf"(?<!\w){words}(?!\w)", text)]


def misspell(text: str, draw: Random) -> str:
    """Swaps two neighbouring inner letters in one word, and in one more for every ten words."""
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


def remove(text: str, spans: Sequence[Span]) -> str:
    """Removes spans of characters from a text."""
    gone = {place for start, end in spans for place in range(start, end)}
    return " ".join("".join(c for n, c in enumerate(text) if n not in gone).split())


def _negate(pair: Pair) -> str | None:
    """Asks for any other entry of the kind: "… any poem but the one that …"."""
    if (entry := pair.entry) is None:
        return None
    nouns = "|".join(map(re.escape, entry.noun))
    who = WORDINGS["relative"].get(entry.kind, "that")
    text = re.sub(rf"^Which ({nouns}) (.*)\?$", rf"Name the \1 {who} \2.", pair.query)
    described = re.sub(rf"\bthe ({nouns}) {who} ", rf"any \1 but the one {who} ", text)
    named = rf"(?:\bthe )?(?:\b(?:{nouns}) )?(?:\b(?:called|of) )?{re.escape(entry.name)}"
    other = f"any {entry.noun[0]} but {entry.name}"
    return described if described != text else re.sub(named, lambda _: other, pair.query, count=1)


# Perturbation → the text that replaces a query or a document's text; None if it does not apply.
PERTURBATIONS: dict[str, Callable[[Pair, Random], str | None]] = {
    "query: typo": lambda pair, draw: misspell(pair.query, draw),
    "query: word order": lambda pair, draw: shuffle(pair.query, draw),
    "query: without stopwords": lambda pair, _: _drop_stopwords(pair.query),
    "query: negation": lambda pair, _: _negate(pair),
    "query: rare term": lambda pair, _: _extend(pair.query, [*pair.further][:1]),
    "query: common term": lambda pair, _: _extend(pair.query, _commonest(pair.further)),
    "document: typo": lambda pair, draw: misspell(pair.text, draw),
    "document: word order": lambda pair, draw: shuffle(pair.text, draw),
    "document: rare query term": lambda pair, _: _extend(pair.text, [*pair.shared][:1]),
    "document: common query term": lambda pair, _: _extend(pair.text, _commonest(pair.shared)),
    "document: foreign words": lambda pair, _: _extend(pair.text, pair.foreign),
    "document: without the answer": lambda pair, _: remove(pair.text, pair.answer),
    "document: without the given": lambda pair, _: remove(pair.text, pair.given),
}


def perturb(pair: Pair) -> dict[str, str]:
    """Returns name → text for every perturbation that changes the pair's query or document."""
    texts = {}
    for name, change in PERTURBATIONS.items():
        own = pair.query if name.startswith("query") else pair.text
        text = change(pair, Random(f"0 {pair.id} {name.replace(':', '')}"))
        if text and text.split() != own.split():
            texts[name] = text
    return texts


ORIGINAL = "original"
DEPTH = 100  # documents a search returns; a document that it misses gets rank DEPTH + 1
METRICS = ("mrr@10", "recall@10")
# Overlap with the documents before → whose ranking it is of, and how many first documents count.
OVERLAPS = {
    "overlap@10": ("system", 10),
    "plan overlap@10": ("plan", 10),
    f"plan overlap@{DEPTH}": ("plan", DEPTH),
}
MEASURES = {
    "holds": "pairs in which an axiom holds, share",
    "shift": "change of the score, in standard deviations over documents",
    "rank": f"change of the rank, at most {DEPTH + 1}",
    "mrr@10": "change of MRR@10",
    "recall@10": "change of R@10",
    "overlap@10": "Jaccard overlap of the first 10 documents with those before",
    "plan overlap@10": "the same of the first 10 documents of the plan",
    f"plan overlap@{DEPTH}": f"the same of the first {DEPTH} documents of the plan",
}
# Axiom → the variant that should score higher, and the variant that should score lower.
AXIOMS = {
    "TFC1: one more query term": ("document: rare query term", ORIGINAL),
    "TDC: the rarer query term": ("document: rare query term", "document: common query term"),
    "TDC, terms added to the query": ("query: rare term", "query: common term"),
    "LNC1: no foreign words": (ORIGINAL, "document: foreign words"),
    "the answer": (ORIGINAL, "document: without the answer"),
    "what the question gives": (ORIGINAL, "document: without the given"),
    "negation": (ORIGINAL, "query: negation"),
}


def draw_pairs(data: RetrievalDataModule, split: str, queries: int, others: int) -> list[Pair]:
    """Draws pairs of a split, with their perturbations and random non-relevant documents.

    The other documents are random rather than a system's best ones, whose scores would lie closer
    together.
    """
    chosen = sample_rows(data.test_queries(split), queries)
    documents, grades = data.documents["id"][:], data.judgements(split, chosen)
    # One document is never changed, so that the index is not empty while the others are exchanged.
    pairs = make_pairs(data.collection, split, chosen)[: len(documents) - 1]
    for pair in track(pairs, "perturbing"):
        pair.texts = perturb(pair)
        rest = [name for name in documents if name not in grades[pair.id]]
        pair.others = Random(pair.id).sample(rest, min(others, len(rest)))
    return pairs


def measure_run(
    retriever: Retriever, split: str, pairs: Sequence[Pair], side: str | None = None
) -> list[Row]:
    """Measures scores, ranks and overlaps of every pair under every perturbation.

    Changed documents replace the originals in the index, where they are scored and searched. A
    system that scores identifiers does not read texts, so only its queries are changed.

    Args:
        side: "query" or "document" = only its perturbations; None = all.
    """
    rows = _ask(retriever, split, ORIGINAL, pairs)
    first = {row["query"]: row for row in rows}
    for name in PERTURBATIONS:
        changed = [p for p in pairs if name in p.texts and name.startswith(side or "")]
        if name.startswith("query"):
            rows += _ask(retriever, split, name, changed)
        elif changed and retriever.system.scores_texts:
            with _replaced(retriever, name, changed):
                rows += _ask(retriever, split, name, changed)
    for row in rows[::-1]:  # the originals, which the others are compared with, come last
        for name in OVERLAPS.keys() & row.keys():
            now, before = row[name], first[row["query"]][name]
            row[name] = len(now & before) / len(now | before) if now else float(not before)
    return rows


def _ask(retriever: Retriever, split: str, name: str, pairs: Sequence[Pair]) -> list[Row]:
    """Returns one row per pair: the scores of its relevant and its other documents, the relevant
    one's rank, and the set of first documents of each ranking of `OVERLAPS`.
    """
    if not pairs:
        return []
    asked = name.startswith("query")
    queries = {pair.id: pair.texts[name] if asked else pair.query for pair in pairs}
    scored = retriever.rerank(queries, {p.id: [p.document["id"], *p.others] for p in pairs})
    found = retriever.retrieve(queries, DEPTH)
    rankings = {"system": found}
    if (plan := getattr(retriever.system, "plan", None)) is not None:
        own = Retriever(plan.stage.model, retriever.reader, retriever.documents)
        rankings["plan"] = own.retrieve(queries, DEPTH)
    judged = judge(found, retriever.data, split, TextTable({"id": [*queries]}), METRICS)
    rows = []
    for pair in pairs:
        gold, places = pair.document["id"], found.documents(pair.id)
        scores = {name: s for name, s in scored.scores(pair.id).items() if isfinite(s)}
        relevant = scores.pop(gold, float("nan"))
        others = torch.tensor([*scores.values()], dtype=torch.float64)
        place = places.index(gold) if gold in places else DEPTH
        row = {"split": split, "query": pair.id, "perturbation": name, "score": relevant}
        row |= {"mean": float(others.mean()), "deviation": float(others.std()), "rank": place + 1}
        for overlap, (ranker, depth) in OVERLAPS.items():
            if ranker in rankings:
                row[overlap] = {*rankings[ranker].documents(pair.id)[:depth]}
        rows.append(row | {metric: judged[pair.id][metric] for metric in METRICS})
    return rows


@contextmanager
def _replaced(retriever: Retriever, name: str, pairs: Sequence[Pair]) -> Iterator[None]:
    """Inside the block, the index holds the perturbed documents of the pairs."""
    originals = [dict(pair.document) for pair in pairs]
    changed = [{**pair.document, "text": pair.texts[name]} for pair in pairs]

    def exchange(rows: list[dict[str, str]]) -> None:
        retriever.remove([row["id"] for row in rows])
        retriever.add(rows)

    exchange(changed)
    try:
        yield
    finally:
        exchange(originals)


def find_effects(rows: Iterable[Row]) -> DataFrame:
    """Computes the effect of each perturbation on each pair, and whether each axiom holds for it.

    A score is measured from the mean of the other documents, since another query shifts all
    scores. Its unit is the standard deviation of the other documents' scores under the original
    query, which makes systems comparable.

    Args:
        rows: as `measure_run` returns them.

    Returns:
        Rows of split, query, perturbation (or axiom), measure and value. For `ORIGINAL`, the values
        are the rank and the metrics themselves; for perturbations, their differences from these,
        and overlaps.
    """
    counted = ["rank", *METRICS]
    rows = DataFrame(rows).set_index(["split", "query", "perturbation"])
    rows = rows.reindex(columns=["score", "mean", "deviation", *counted, *OVERLAPS])
    first = rows.xs(ORIGINAL, level="perturbation").reindex(rows.index.droplevel("perturbation"))
    first, names = first.set_axis(rows.index), rows.index.get_level_values("perturbation")
    # The other documents may belong to other pairs, whose documents are changed as well.
    mean = rows["mean"].where(names.str.startswith("query"), first["mean"])
    margins = rows["score"] - mean - first["score"] + first["mean"]
    shifts = margins / first["deviation"].where(first["deviation"] > 0)
    effects = rows[counted] - first[counted].mul(names != ORIGINAL, axis=0)
    effects["shift"] = shifts[names != ORIGINAL]
    effects = effects.join(rows.loc[names != ORIGINAL, [*OVERLAPS]])
    found = [effects.melt(ignore_index=False, var_name="measure")]
    by_name = shifts.unstack(sort=False)
    for axiom, (higher, lower) in AXIOMS.items():
        if {higher, lower} <= {*by_name}:
            both = by_name[[higher, lower]].dropna()
            holds = (both[higher] > both[lower]).astype(float).to_frame("value")
            holds = holds.assign(perturbation=axiom, measure="holds")
            found.append(holds.set_index("perturbation", append=True))
    return pandas.concat(found).dropna().reset_index()


def summarise(runs: Iterable[Iterable[Row]]) -> list[Row]:
    """Averages effects over pairs, with 95 % bootstrap intervals; each pair's is a mean over runs.

    Args:
        runs: rows of `measure_run` for each seed of one system.
    """
    keys = ["split", "perturbation", "measure"]
    effects = pandas.concat(map(find_effects, runs))
    values = effects.groupby([*keys, "query"], sort=False)["value"].mean()
    rows = []
    for key, found in values.groupby(keys, sort=False):
        low, high = map(float, interval(torch.tensor(found.to_numpy())[:, None]))
        row = {"pairs": len(found), "value": found.mean(), "low": low, "high": high}
        rows.append(dict(zip(keys, key, strict=True)) | row)
    return rows


def tabulate(rows: Sequence[Row], split: str, measure: str) -> Table:
    """Tabulates one measure: perturbations or axioms as rows, systems as columns."""
    order = [ORIGINAL, *PERTURBATIONS, *AXIOMS]
    chosen = [row for row in rows if (row["split"], row["measure"]) == (split, measure)]
    cells = {}
    for row in sorted(chosen, key=lambda row: order.index(row["perturbation"])):
        text = f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]".replace("-", "−")
        cells[row["perturbation"], row["system"]] = text
    return pivot(cells, f"{split}: {MEASURES[measure]}", corner="")


def draw_shifts(rows: Sequence[Row], title: str) -> Figure:
    """Plots the shifts of the score: a panel per split, a marker per system, intervals as bars."""
    table = DataFrame(rows).query("measure == 'shift'").set_index("perturbation")
    table = table.loc[[name for name in PERTURBATIONS if name in table.index]].reset_index()
    names = {"split": "place", "perturbation": "name", "system": "series"}
    systems, looks = table["system"].unique(), zip(cycle(COLOURS), cycle(MARKERS), strict=False)
    looks = dict(zip(systems, looks, strict=False))
    return forest_figure(table.rename(columns=names), title, looks, "change of the score", 0.7)


def compare_axioms(
    comparison: Comparison,
    folder: Path,
    queries: int,
    others: int,
    side: str | None = None,
    trust: bool = False,
) -> list[Row]:
    """Writes `axioms.csv`, `axioms.md` and the figure of finished runs.

    Args:
        folder: where the files go; `values/` keeps each run's measurements, so that an interrupted
            command resumes.
        queries, others: see `draw_pairs`.
        side: see `measure_run`.
        trust: see `Retriever.load`.
    """
    rows, pairs, setting = [], {}, comparison.only_section().setting
    for group in comparison.groups:
        runs = []
        for run in group.runs:
            key = short_hash(run.config, run.metrics, queries, others, side)[:8]
            path = folder / "values" / f"{run.path.name}-{key}.csv"
            if not path.is_file():
                retriever, found = Retriever.load(run.path, trust=trust), []
                for split in retriever.data.test_splits:
                    if split not in pairs:
                        pairs[split] = draw_pairs(retriever.data, split, queries, others)
                    found += measure_run(retriever, split, pairs[split], side)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_rows(found, path)
            runs.append(read_rows(path))
        rows += [{"system": group.label} | row for row in summarise(runs)]
    write_rows(rows, folder / "axioms.csv")
    kinds = dict.fromkeys((row["split"], measure) for row in rows for measure in MEASURES)
    measured = {(row["split"], row["measure"]) for row in rows}
    tables = [tabulate(rows, *kind) for kind in kinds if kind in measured]
    write_tables(folder / "axioms.md", f"Axioms: {setting}", tables)
    save_figure(draw_shifts(rows, setting), folder, "axioms")
    return rows


def main(config: DictConfig) -> None:
    comparison = compare_runs(named_folders(config.runs))
    folder = place_tables(comparison, "axioms", config.output)
    options = (config.queries, config.others, config.side, config.trust)
    compare_axioms(comparison, folder, *options)
    print((folder / "axioms.md").read_text(), folder / "axioms.md", folder / "axioms.png", sep="\n")

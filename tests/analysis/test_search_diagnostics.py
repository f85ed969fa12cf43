import csv
import math
from types import SimpleNamespace

import datasets
import pytest
import pytorch_lightning as pl
import torch

from analysis.analyse import write_findings
from analysis.search_diagnostics import (
    SearchDiagnostics,
    outcome,
    places_of,
    search_errors,
    search_figure,
)
from gr_mvdr.decoding import search_trace
from gr_mvdr.decoding.names import TrieNames
from gr_mvdr.decoding.search_trace import SearchTrace
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.identifiers.scheme import Scheme
from gr_mvdr.options import admitting
from gr_mvdr.template import TextTemplate
from models.docid import Docid
from models.generative import GenerativeSystem
from models.t5_seal import T5SEAL
from tests.analysis.asking import asked

END, VOCABULARY = 1, 8


def diagnosed(system, data, folder, queries, drawn=False):
    """The metrics, once all files are written."""
    found = asked(SearchDiagnostics, system, data, queries)
    found.figures = found.figures if drawn else []
    return write_findings([found], folder)


class Table(list):
    """Rows by number, columns by name."""

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


class Chain(GenerativeSystem):
    """A generative system whose next-token probabilities are given by a function of the prefix."""

    device, hparams, template = "cpu", None, TextTemplate()

    def __init__(self, docids, log_probs, beam_size, exhaustive=True):
        pl.LightningModule.__init__(self)
        self.docids, self.log_probs, self.targets_are_ngrams = docids, log_probs, not exhaustive
        self.hparams = SimpleNamespace(beam_size=beam_size)
        self.names = TrieNames(Trie.build(docids), docids)

    def prepare_query(self, query):
        return query

    def decoding_step(self, query_ids, query_mask):
        prefixes = []

        def step(tokens, parents):
            if prefixes:
                last = zip(parents.tolist(), tokens.tolist(), strict=True)
                prefixes[:] = [(*prefixes[parent], token) for parent, token in last]
            else:
                prefixes[:] = [(query,) for (query,) in query_ids.tolist()]
            return torch.stack([self.log_probs(query, tuple(p)) for query, *p in prefixes])

        return step

    def rerank(self, queries, documents, candidates):
        docid = dict(zip(documents["id"], self.docids, strict=True))
        scores = {
            q["id"]: {n: self._score(*q["tokens"], docid[n]) for n in candidates[q["id"]]}
            for q in queries
        }
        return Ranking(scores)

    def _score(self, query, docid):
        steps = enumerate(docid)
        return sum(float(self.log_probs(query, tuple(docid[:at]))[token]) for at, token in steps)


def dataset(n_documents, gold, judged_0=()):
    """A data module's part; gold: of each query its relevant documents' ids."""
    queries = Table({"id": f"q{n}", "tokens": [n], "text": ""} for n in range(len(gold)))
    qrels = {f"q{n}": dict.fromkeys(ids, 1) for n, ids in enumerate(gold)}
    for query, document in judged_0:
        qrels[query][document] = 0
    data = SimpleNamespace(
        test_splits=["test"],
        test_queries=lambda split: queries,
        judgements=lambda split, table: {query: qrels[query] for query in table["id"]},
        documents=Table({"id": f"d{n}"} for n in range(n_documents)),
        collection=SimpleNamespace(name="almanac"),
        drop_identical=False,
    )
    data.keep_hits = lambda query, hits: [
        d for d in hits if not (data.drop_identical and d == query)
    ]
    return data


def table_of(**probabilities):
    """Next-token probabilities by prefix ("", "2", "23" …) as a function."""

    def log_probs(query, prefix):
        values = torch.full((VOCABULARY,), 1e-9)
        for token, value in probabilities["p" + "".join(map(str, prefix))].items():
            values[token] = value
        return values.log()

    return log_probs


# The greedy path through token 2 ends at 0.6 · 0.5 = 0.30, the best document has 0.4 · 0.9 = 0.36.
GARDEN = table_of(p={2: 0.6, 3: 0.4}, p2={4: 0.5, 5: 0.4}, p3={4: 0.9, 5: 0.1})
DOCIDS = [[2, 4], [2, 5], [3, 4], [3, 5]]


@pytest.fixture(scope="module")
def garden(tmp_path_factory):
    """One query for each document, beam 1: the search finds d0 whatever is asked."""
    data, run = dataset(4, [["d0"], ["d1"], ["d2"], ["d3"]]), tmp_path_factory.mktemp("garden")
    metrics = diagnosed(Chain(DOCIDS, GARDEN, 1), data, run, 50, drawn=True)
    return run, {name.removeprefix("analysis/search/"): v for name, v in metrics.items()}


def test_a_garden_path_worked_out_by_hand(garden):
    _, metrics = garden
    # Exhaustively d2 0.36, d0 0.30, d1 0.24, d3 0.04; the search finds d0 alone.
    expected = {
        "queries": 4,
        "recall@1": 0.25,  # d0
        "luck@1": 0.25,  # d0, since d2 was pruned
        "search_error@1": 0.25,  # d2
        "model_error@1": 0.75,
        "recall@10": 0.25,
        "luck@10": 0,
        "search_error@10": 0.75,
        "model_error@10": 0,
        "gold_alive/step_1": 0.5,  # d0 and d1 begin with 2
        "gold_alive/step_2": 0.25,
        "lost_rank/step_1": 2,  # token 3 is second of two
        "lost_rank/step_2": 2,  # 25 is second of two
        "lost_rank/any_step": 2,
        "invalid": 0,
        "duplicates": 0,
    }
    found = {name: metrics[name] for name in expected}
    assert found == pytest.approx(expected)
    assert metrics["score_difference"] < 1e-6
    assert metrics["model_ms_per_step"] > 0 and metrics["constraint_ms_per_step"] > 0


def test_the_query_itself_competes_with_no_document(tmp_path):
    """Asked what d2 is: d3's 0.04 comes after 0.36 and 0.30 and 0.24; its own 0.36 is no hit."""
    data = dataset(4, [["d3"]])
    data.test_queries("test")[0]["id"] = "d2"
    data.judgements = lambda split, table: {"d2": {"d3": 1}}
    for dropped, rank in ((False, 4), (True, 3)):
        data.drop_identical = dropped
        diagnosed(Chain(DOCIDS, GARDEN, 40), data, tmp_path, 5)
        with (tmp_path / "search_diagnostics.csv").open() as file:
            (row,) = csv.DictReader(file)
        assert int(row["rank_beam"]) == int(row["rank_exhaustive"]) == rank


def test_each_query_has_a_line(garden):
    run, _ = garden
    rows = list(csv.DictReader((run / "search_diagnostics.csv").open()))
    assert [row["query"] for row in rows] == ["q0", "q1", "q2", "q3"]
    assert [row["lost_at_step"] for row in rows] == ["", "2", "1", "1"]
    assert [row["lost_rank"] for row in rows] == ["", "2", "2", "2"]
    assert [row["rank_beam"] for row in rows] == ["1", "", "", ""]
    assert [row["rank_exhaustive"] for row in rows] == ["2", "3", "1", "4"]
    assert not list(run.rglob("*.partial"))


def random_chain(seed, beam_size):
    """Three-token docids, some shared, and probabilities without any structure."""
    generator = torch.Generator().manual_seed(seed)
    docids = torch.randint(2, VOCABULARY, (40, 3), generator=generator).tolist()

    def log_probs(query, prefix):
        number = sum(token * VOCABULARY**at for at, token in enumerate((query, *prefix), start=1))
        draw = torch.Generator().manual_seed(number + 10**6 * seed)
        return (2 * torch.randn(VOCABULARY, generator=draw)).log_softmax(0)

    return Chain(docids, log_probs, beam_size), generator


@pytest.mark.parametrize("beam_size", [1, 3, 40])
def test_recall_is_what_model_search_and_luck_make_it(tmp_path, beam_size):
    system, generator = random_chain(beam_size, beam_size)
    draws = [torch.randperm(40, generator=generator)[: 1 + n % 3].tolist() for n in range(30)]
    gold = [[f"d{number}" for number in draw] for draw in draws]
    data = dataset(40, gold)
    metrics = diagnosed(system, data, tmp_path, 30)
    values = {name.removeprefix("analysis/search/"): v for name, v in metrics.items()}
    beam = {}
    for query in data.test_queries("test"):
        scores = system.names.scores(system.search([query["tokens"]]), 0)
        beam[query["id"]] = {f"d{number}": score for number, score in scores.items()}
    recall = evaluate(Ranking(beam), {f"q{n}": dict.fromkeys(ids, 1) for n, ids in enumerate(gold)})
    for k in (1, 10):
        model, search, luck = (values[f"{name}@{k}"] for name in SHARES)
        assert values[f"recall@{k}"] == pytest.approx(1 - model - search + luck)
        assert values[f"recall@{k}"] == pytest.approx(recall[f"recall@{k}"])
        assert sum(outcome(values, k).values()) == pytest.approx(1)
    assert values["score_difference"] < 1e-5
    alive = [values[f"gold_alive/step_{step}"] for step in (1, 2, 3)]
    assert sorted(alive, reverse=True) == alive
    if beam_size == 40:  # nothing is pruned
        assert values["search_error@1"] == values["luck@10"] == 0
        assert alive == [1, 1, 1] and not any("lost_rank" in name for name in values)
    else:
        assert values["search_error@10"] > 0 and alive[-1] < 1


SHARES = ("model_error", "search_error", "luck")


def path_of(system, document, query=0):
    trace = SearchTrace(system.names.gold_prefixes(document), system.template.stop)
    return trace.path(system.search([[query]], trace=trace))


def alive(path):
    return [step.alive for step in path.steps]


def ranks(path):
    return [step.rank for step in path.steps]


def test_a_gold_that_has_ended_is_not_lost():
    # [2, end] is complete after two steps while [2, 3, 4, end] goes on, and its beam is 1.
    docids = [[2, END], [2, 3, 4, END], [5, END]]
    chain = table_of(p={2: 0.8, 5: 0.2}, p2={END: 0.6, 3: 0.4}, p23={4: 1.0}, p234={END: 1.0})
    short, long, other = (path_of(Chain(docids, chain, 1), n) for n in range(3))
    assert [alive(path) for path in (short, long, other)] == [[True] * 4, [True] * 4, [False] * 4]
    assert (short.lost, long.lost) == (None, None)
    assert ranks(short) == [1, 1, None, None] and ranks(long) == [1, 2, 1, 1]
    assert (other.lost, other.lost_step.rank) == (1, 2)


def test_a_search_that_ended_early_keeps_what_it_had(tmp_path):
    likely = [
        table_of(p={2: 0.9, 3: 0.1}, p2={END: 1.0}, p3={4: 1.0}, p34={END: 1.0}),
        table_of(p={2: 0.1, 3: 0.9}, p2={END: 1.0}, p3={4: 1.0}, p34={END: 1.0}),
    ]
    system = Chain([[2, END], [3, 4, END]], lambda query, prefix: likely[query](query, prefix), 1)
    metrics = diagnosed(system, dataset(2, [["d0"], ["d1"]]), tmp_path, 50)
    assert [len(path_of(system, n, query=n).steps) for n in (0, 1)] == [2, 3]
    assert [metrics[f"analysis/search/gold_alive/step_{step}"] for step in (1, 2, 3)] == [1, 1, 1]


def test_equal_successors_keep_the_order_of_the_search():
    chain = Chain([[2], [3], [4]], table_of(p={2: 0.2, 3: 0.2, 4: 0.2}), 2)
    assert [ranks(path_of(chain, n)) for n in range(3)] == [[1], [2], [3]]
    assert [path_of(chain, n).lost for n in range(3)] == [None, None, 1]


def test_a_document_without_an_identifier_cannot_be_found(tmp_path):
    system = Chain([[2, 4], [2, 5], [3, 4], []], GARDEN, 4)
    system._score = lambda query, docid: Chain._score(system, query, docid) if docid else -math.inf
    data = dataset(4, [["d0"], ["d3"], ["elsewhere"]])
    metrics = diagnosed(system, data, tmp_path, 50)
    assert metrics["analysis/search/model_error@10"] == pytest.approx(2 / 3)
    assert metrics["analysis/search/search_error@10"] == 0
    assert metrics["analysis/search/gold_alive/step_1"] == pytest.approx(1 / 3)
    # Not even the constraint offered a way to it: there is no rank.
    assert not any("lost_rank" in name for name in metrics)


def test_times_are_the_models_and_the_constraints_own(monkeypatch):
    now = [0.0]

    def taking(seconds, function):
        def slow(*arguments):
            now[0] += seconds
            return function(*arguments)

        return slow

    monkeypatch.setattr(search_trace, "_clock", lambda: now[0])
    monkeypatch.setattr(torch, "isin", taking(7, torch.isin))  # the observer's
    system = Chain(DOCIDS, taking(3, GARDEN), 1)
    trie = system.names.constraint
    monkeypatch.setattr(trie, "expand", taking(5, trie.expand))
    path = path_of(system, 0)
    assert path.model_ms == pytest.approx(3000) and path.constraint_ms == pytest.approx(5000)


def test_scores_that_differ_are_said_aloud(tmp_path):
    system = Chain(DOCIDS, GARDEN, 1)
    exact = system._score
    system._score = lambda query, docid: exact(query, docid) + 0.01 * (docid == DOCIDS[0])
    with pytest.warns(UserWarning, match=r"differ by 0\.01 > 0\.001"):
        metrics = diagnosed(system, dataset(4, [["d0"]]), tmp_path, 50)
    assert metrics["analysis/search/score_difference"] == pytest.approx(0.01, abs=1e-6)


def test_shared_identifiers_rank_by_document_id():
    """Ties go to the later id; −inf is a document without an identifier."""
    scores = {"c": -1.0, "a": -2.0, "b": -1.0, "d": -1.0, "e": -math.inf}
    assert places_of(["c", "b", "d", "a", "e", "x"], scores) == [2, 3, 1, 4, None, None]
    assert search_errors([2, 3, 1, None, None], None, 1) == {"recall@1": pytest.approx(0.2)}


def test_invalid_and_repeated_outputs_are_counted(tmp_path, monkeypatch):
    system = Chain(DOCIDS, GARDEN, 4)
    names = lambda self, tokens: [] if tuple(tokens) == (2, 4) else [0]  # noqa: E731
    monkeypatch.setattr(TrieNames, "documents_of", names)
    search = system.search

    def repeating(*queries, **options):
        result = search(*queries, **options)
        result.final = result.final[torch.tensor([0, 1, 2, 3, 3])]
        return result

    system.search = repeating
    metrics = diagnosed(system, dataset(4, [["d0"]]), tmp_path, 50)
    assert metrics["analysis/search/invalid"] == pytest.approx(0.2)
    assert metrics["analysis/search/duplicates"] == pytest.approx(0.2)


def test_the_sample_is_spread_and_queries_without_a_relevant_document_are_left_out(tmp_path):
    data = dataset(4, [["d0"]] * 8 + [[]], judged_0=[("q8", "d1")])
    metrics = diagnosed(Chain(DOCIDS, GARDEN, 4), data, tmp_path, 3)
    rows = list(csv.DictReader((tmp_path / "search_diagnostics.csv").open()))
    assert [row["query"] for row in rows] == ["q0", "q4"]
    assert metrics["analysis/search/queries"] == 2
    assert diagnosed(Chain(DOCIDS, GARDEN, 4), dataset(4, [[]]), tmp_path, 3) == {}


def test_other_systems_have_no_such_search(tmp_path):
    system = SimpleNamespace(paradigm="multi_vector")
    assert diagnosed(system, None, tmp_path, 50) == {}
    assert not list(tmp_path.iterdir())


def test_the_figure_shows_the_metrics(garden):
    _, metrics = garden
    left, right = search_figure(metrics, "cost $x_{1}$").axes
    assert [bar.get_height() for bar in left.patches] == [0.5, 0.25]
    assert [text.get_text() for text in left.texts] == ["rank 2", "rank 2"]
    names = [text.get_text() for text in right.get_legend().get_texts()]
    assert set(names) == {"found", "found by luck", "search error", "model error"}


def test_without_exhaustive_scores_there_is_recall_alone(tmp_path):
    system = Chain(DOCIDS, GARDEN, 1, exhaustive=False)
    metrics = diagnosed(system, dataset(4, [["d0"], ["d2"]]), tmp_path, 50, drawn=True)
    assert metrics["analysis/search/recall@1"] == 0.5
    assert not any("error" in name or "luck" in name or "score" in name for name in metrics)
    values = {"recall@1": 0.5}
    assert outcome(values, 1) == {"found": 0.5, "not found": 0.5}


class FixedDocids(Scheme):
    """A scheme of given docids; two documents share one."""

    def name(self, documents):
        return [[4 + n // 9, 4 + n // 3 % 3, 4 + min(n, 25) % 3] for n in documents["number"]]


@pytest.fixture
def corpus():
    """27 documents of random words, and a query for each: its first words."""
    words = torch.randint(4, 40, (27, 8), generator=torch.Generator().manual_seed(2)).tolist()
    documents = {"id": [f"d{n}" for n in range(27)], "number": list(range(27)), "tokens": words}
    documents["text"] = documents["title"] = [" ".join(map(str, row)) for row in words]
    documents["title_tokens"] = [row[:2] for row in words]
    data = dataset(27, [[f"d{n}"] for n in range(27)])
    data.documents = datasets.Dataset.from_dict(documents)
    queries = Table({"id": f"q{n}", "tokens": row[:3], "text": ""} for n, row in enumerate(words))
    data.test_queries = lambda split: queries
    return data


def tiny(build, **options):
    torch.manual_seed(0)
    shape = dict(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    backbone = dict(name=None, dropout_rate=0.0, attention="eager", shape=shape)
    optimizer = {"learning_rate": 1e-3, "weight_decay": 0.01, "schedule": "constant"}
    common = dict(backbone=backbone, query_length=8, document_length=12, optimizer=optimizer)
    return build(**common, **options).eval()


@pytest.mark.parametrize("beam_size", [2, 40])
def test_a_real_docid_system(corpus, tmp_path, beam_size):
    scheme = {"_target_": f"{__name__}.FixedDocids"}
    with admitting(scheme):
        system = tiny(Docid, identifiers=scheme, beam_size=beam_size)
    system.prepare(corpus.documents, range(27), tmp_path / "identifiers")
    system.index(corpus.documents, tmp_path / "index")
    metrics = diagnosed(system, corpus, tmp_path, 27)
    values = {name.removeprefix("analysis/search/"): v for name, v in metrics.items()}
    assert values["score_difference"] < 1e-5
    assert values["invalid"] == values["duplicates"] == 0
    for k in (1, 10):
        model, search, luck = (values[f"{name}@{k}"] for name in SHARES)
        assert values[f"recall@{k}"] == pytest.approx(1 - model - search + luck)
        assert beam_size == 2 or search == luck == 0
    assert (values["gold_alive/step_3"] == 1) == (beam_size == 40)


def test_a_real_seal(corpus, tmp_path):
    evidence = dict(alpha=2.0, beta=0.8, smoothing=0.1, max_occurrences_1=1500)
    system = tiny(T5SEAL, key_length=4, beam_size=3, evidence=evidence)
    system.index(corpus.documents, tmp_path / "index")
    metrics = diagnosed(system, corpus, tmp_path, 27)
    assert metrics["analysis/search/invalid"] == metrics["analysis/search/duplicates"] == 0
    assert 0 <= metrics["analysis/search/recall@10"] <= 1
    assert "analysis/search/gold_alive/step_4" in metrics
    assert "analysis/search/search_error@1" not in metrics
    line = next(csv.DictReader((tmp_path / "search_diagnostics.csv").open()))
    assert line["rank_exhaustive"] == "" and int(line["outputs"]) >= 3

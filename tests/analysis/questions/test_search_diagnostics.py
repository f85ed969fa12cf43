import csv
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch

from analysis.questions.search_diagnostics import SearchDiagnostics
from analysis.run import write_findings
from gr_mvdr.decoding.names import TrieNames
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.template import TextTemplate
from gr_mvdr.texts import TextTable
from models.generative import DocumentGenerator
from tests.analysis.asking import asked, data_of
from tests.runs import flat

VOCABULARY = 8


def diagnosed(system, data, folder, queries):
    """The metrics, once all files are written."""
    found = asked(SearchDiagnostics, system, data, queries)
    found.figures = []
    return flat(write_findings([found], folder))


class Chain(DocumentGenerator):
    """A generative system whose next-token probabilities are given by a function of the prefix."""

    device, hparams, template, targets_are_ngrams = "cpu", None, TextTemplate(), False

    def __init__(self, docids, log_probs, beam_size):
        pl.LightningModule.__init__(self)
        self.docids, self.log_probs = docids, log_probs
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


def dataset(n_documents, gold):
    """A data module's part; gold: of each query its relevant documents' ids."""
    relevant = {f"q{n}": list(ids) for n, ids in enumerate(gold)}
    tokens = [[n] for n in range(len(gold))]
    queries = TextTable({"id": [*relevant], "tokens": tokens, "text": [""] * len(gold)})
    return data_of(
        test_queries=lambda split: queries,
        relevant=lambda split, table: {query: relevant[query] for query in table["id"]},
        documents=TextTable({"id": [f"d{n}" for n in range(n_documents)]}),
        keep_hits=lambda query, hits: hits,
    )


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


def test_a_garden_path_worked_out_by_hand(tmp_path):
    """One query for each document, beam 1: the search finds d0 whatever is asked."""
    data = dataset(4, [["d0"], ["d1"], ["d2"], ["d3"]])
    metrics = diagnosed(Chain(DOCIDS, GARDEN, 1), data, tmp_path, 50)
    metrics = {name.removeprefix("analysis/search/"): v for name, v in metrics.items()}
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
    }
    found = {name: metrics[name] for name in expected}
    assert found == pytest.approx(expected)
    assert metrics["score_difference"] < 1e-6
    rows = list(csv.DictReader((tmp_path / "search_diagnostics.csv").open()))
    assert [row["lost_at_step"] for row in rows] == ["", "2", "1", "1"]
    assert [row["rank_beam"] for row in rows] == ["1", "", "", ""]
    assert [row["rank_exhaustive"] for row in rows] == ["2", "3", "1", "4"]


@pytest.mark.parametrize("beam_size", [3, 40])
def test_recall_is_what_model_search_and_luck_make_it(tmp_path, beam_size):
    """Three-token docids, some shared, and probabilities without any structure."""
    seed = beam_size
    generator = torch.Generator().manual_seed(seed)
    docids = torch.randint(2, VOCABULARY, (40, 3), generator=generator).tolist()

    def log_probs(query, prefix):
        number = sum(token * VOCABULARY**at for at, token in enumerate((query, *prefix), start=1))
        draw = torch.Generator().manual_seed(number + 10**6 * seed)
        return (2 * torch.randn(VOCABULARY, generator=draw)).log_softmax(0)

    system = Chain(docids, log_probs, beam_size)
    draws = [torch.randperm(40, generator=generator)[: 1 + n % 3].tolist() for n in range(30)]
    gold = [[f"d{number}" for number in draw] for draw in draws]
    data = dataset(40, gold)
    metrics = diagnosed(system, data, tmp_path, 30)
    values = {name.removeprefix("analysis/search/"): v for name, v in metrics.items()}
    beam = {}
    for query in data.evaluation.test_queries("test"):
        scores = system.names.scores(system.search([query["tokens"]]), 0)
        beam[query["id"]] = {f"d{number}": score for number, score in scores.items()}
    recall = evaluate(Ranking(beam), {f"q{n}": dict.fromkeys(ids, 1) for n, ids in enumerate(gold)})
    for k in (1, 10):
        shares = ("model_error", "search_error", "luck")
        model, search, luck = (values[f"{name}@{k}"] for name in shares)
        assert values[f"recall@{k}"] == pytest.approx(1 - model - search + luck)
        assert values[f"recall@{k}"] == pytest.approx(recall[f"recall@{k}"])
    assert values["score_difference"] < 1e-5
    alive = [values[f"gold_alive/step_{step}"] for step in (1, 2, 3)]
    assert sorted(alive, reverse=True) == alive
    if beam_size == 40:  # nothing is pruned
        assert values["search_error@1"] == values["luck@10"] == 0
        assert alive == [1, 1, 1] and not any("lost_rank" in name for name in values)
    else:
        assert values["search_error@10"] > 0 and alive[-1] < 1

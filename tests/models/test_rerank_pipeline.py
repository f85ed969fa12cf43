"""The pipeline: what each stage is given, how rankings are stacked, costs, what is refused."""

import json
import sys
from types import ModuleType

import pytest
import yaml

from gr_mvdr.evaluation.ranking import Ranking
from models.base import System, check_form
from models.rerank_pipeline import RerankPipeline
from tests.models.conftest import make_seal
from tests.runs import flat, small
from train import train

FIRST = [[6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6]]
SECOND = [[0.1, 0.3, 0.2, 9, 9, 9], [9, 9, 0.3, 0.1, 0.2, 0.4]]
THIRD = [[-7, -8, -9, 0, 0, 0], [0, 0, -2, -1, 0, 5]]


class Scripted(System):
    """Scores document dN of query qM by `scores[M][N]`; a pair costs what its lengths say."""

    paradigm = "lexical"
    trainable = False

    def __init__(self, scores):
        super().__init__()
        self.save_hyperparameters()
        self.asked = []

    def joint_flops(self, query_tokens, document_tokens):
        return 1000.0 * query_tokens + document_tokens

    def open_index(self, documents, directory):
        if (directory / "of").read_text() != "these":
            raise ValueError(f"{directory}: was made by another model")
        self.documents = documents["id"][:]

    def index(self, documents, directory):
        directory.mkdir()
        self.documents = documents["id"][:]

    def retrieve(self, queries, k=100, among=None, with_shares=False):
        return self.rerank(queries, None, dict.fromkeys(queries["id"], self.documents)).top(k)

    def _rerank(self, queries, documents, candidates, sign=1):
        self.asked.append({query: list(candidates[query]) for query in queries["id"]})
        table = self.hparams.scores
        return Ranking(
            {
                query: {
                    d: sign * float(table[int(query[1:])][int(d[1:])]) for d in candidates[query]
                }
                for query in queries["id"]
            }
        )


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    """A module under whose name a configuration finds `Scripted`."""
    module = ModuleType("scripted_stage")
    module.Scripted, module.negative = Scripted, lambda number: -number
    monkeypatch.setitem(sys.modules, "scripted_stage", module)


@pytest.fixture
def texts(tools):
    """Six documents of different lengths."""
    return tools.Texts(tools.draw_tokens([3, 9, 1, 5, 7, 2], seed=3), "d")


@pytest.fixture
def asked(tools):
    return tools.Texts([[4] * 3, [4] * 6], "q")


def scripted_run(folder, scores=FIRST, rerank=None, **record):
    """The folder that a run leaves behind, as far as a pipeline reads it."""
    (folder / "model").mkdir(parents=True)
    model = {"system": "scripted_stage.Scripted", "hyper_parameters": {"scores": scores}}
    (folder / "model/gr_mvdr.json").write_text(json.dumps(model))
    config = {"tokenizer": {"unit": "piece"}, "rerank": rerank or {"relevance": {}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    defaults = dict(system=folder.name, collection="places", documents=6)
    defaults |= dict(sources={"a/corpus.jsonl": "12ab"}, text_fields=["title", "text"])
    (folder / "provenance.json").write_text(json.dumps({**defaults, **record}))
    (folder / "metrics.json").write_text("{}")
    return folder


def pipeline(*runs, documents, directory):
    """A pipeline of (folder, depth), prepared and indexed."""
    stages = [
        {"run": str(run), "trust": True} | ({} if depth is None else {"depth": depth})
        for run, depth in runs
    ]
    model = RerankPipeline(stages).eval()
    model.prepare(documents, range(len(documents)), directory / "identifiers")
    model.index(documents, directory / "index")
    return model


@pytest.fixture
def three(tmp_path, texts):
    """Stages of 4, 2 and all documents."""
    runs = [
        scripted_run(tmp_path / name, scores)
        for name, scores in (("A", FIRST), ("B", SECOND), ("C", THIRD))
    ]
    return pipeline(*zip(runs, (4, 2, None), strict=True), documents=texts, directory=tmp_path)


# Order -----------------------------------------------------------------------------------------


def test_each_stage_reranks_what_the_one_before_hands_on(three, asked):
    found = three.retrieve(asked, 100)
    second, third = (stage.model.asked for stage in three.stages[1:])
    assert second == [{"q0": ["d0", "d1", "d2", "d3"], "q1": ["d5", "d4", "d3", "d2"]}]
    # By B: q0 d3 (9), d1, d2, d0; q1 d5, d2, d4, d3.
    assert third == [{"q0": ["d3", "d1"], "q1": ["d5", "d2"]}]
    assert found.documents("q0") == ["d3", "d1", "d2", "d0"]
    assert found.documents("q1") == ["d5", "d2", "d4", "d3"]
    assert three.retrieve(asked, 3).documents("q0") == ["d3", "d1", "d2"]


def test_a_stage_reranks_in_the_first_form_of_its_run(tmp_path, texts, asked):
    backwards = {"_target_": "scripted_stage.negative", "number": 1}  # a part is built
    forms = {"backwards": {"sign": backwards}, "forwards": {"sign": 1}}
    runs = scripted_run(tmp_path / "A"), scripted_run(tmp_path / "B", FIRST, forms)
    model = pipeline((runs[0], 3), (runs[1], None), documents=texts, directory=tmp_path)
    assert model.retrieve(asked).documents("q0") == ["d2", "d1", "d0"]


# Costs -----------------------------------------------------------------------------------------


def test_joint_compute_is_counted_pair_by_pair(three, asked, texts):
    n = {"q0": 4, "q1": 7}  # end tokens included
    m = {name: len(tokens) + 1 for name, tokens in zip(texts["id"], texts["tokens"], strict=True)}
    handed = [
        dict.fromkeys(n, texts["id"]),  # the first stage scores the collection
        {"q0": ["d0", "d1", "d2", "d3"], "q1": ["d5", "d4", "d3", "d2"]},
        {"q0": ["d3", "d1"], "q1": ["d5", "d2"]},
    ]
    assert three.statistics() == []
    three.retrieve(asked)
    three.retrieve(asked)  # a mean over queries, however often they come
    found, total = flat(three.statistics()), 0.0
    three.rerank(asked, texts, {"q0": ["d1", "d0"], "q1": ["d2"]})  # is not counted
    assert flat(three.statistics()) == found
    for name, pairs in zip(("1-A", "2-B", "3-C"), handed, strict=True):
        expected = sum(1000.0 * n[q] + m[d] for q in pairs for d in pairs[q]) / 2
        assert found[f"cost/joint_flops/{name}"] == pytest.approx(expected)
        assert 0 < found[f"cost/stage_ms/{name}"] < 1000
        total += expected
    assert found["cost/joint_flops"] == pytest.approx(total)


@pytest.mark.parametrize(("kept", "made"), [("these", False), ("others", True), (None, True)])
def test_an_index_is_made_only_if_the_runs_own_does_not_fit(
    tmp_path, texts, asked, kept, made, capsys
):
    run = scripted_run(tmp_path / "A")
    if kept:
        (run / "index").mkdir()
        (run / "index/of").write_text(kept)
    model = pipeline((run, None), documents=texts, directory=tmp_path)
    assert (tmp_path / "index/1-A").exists() == made
    assert (": its index is made again:" in capsys.readouterr().out) == made
    assert model.retrieve(asked, 1).documents("q0") == ["d0"]


# Refused ---------------------------------------------------------------------------------------


def test_stages_that_do_not_fit_together_are_refused(tmp_path, monkeypatch):
    scripted_run(tmp_path / "A")
    scripted_run(tmp_path / "texts", sources={"elsewhere/corpus.jsonl": "99ff"})
    scripted_run(tmp_path / "fields", text_fields=["text"])
    monkeypatch.chdir(tmp_path)
    first, last = {"run": "A", "depth": 3}, {"run": "A"}
    for stages, message in (
        ([], r"model.stages=\[\]: must be a list of"),
        ([last, last], "model.stages.0.depth=null: must be .* ≥ 1"),
        ([first], "model.stages.0.depth=3: must be null for the last"),
        ([first, {"run": "texts"}], r"stages.1.run=.*: corpus.jsonl .* \(99ff, expected 12ab\)"),
        (
            [first, {"run": "fields"}],
            r"text_fields .* first stage \(text, expected title, text\)",
        ),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            RerankPipeline(stages)


def test_a_run_of_other_documents_is_refused(tmp_path, texts):
    """By their number, else by the hashes of both provenances."""
    run, own = scripted_run(tmp_path / "A"), tmp_path / "provenance.json"
    record = json.loads((run / "provenance.json").read_text())
    own.write_text(json.dumps(record))
    pipeline((run, None), documents=texts, directory=tmp_path)
    own.write_text(json.dumps(record | {"sources": {"corpus.jsonl": "77"}, "collection": "x"}))
    said = r"corpus.jsonl of places differs from that of this run \(12ab, expected 77\)"
    with pytest.raises(ValueError, match=said):
        pipeline((run, None), documents=texts, directory=tmp_path)
    said = r"stages.0.run=.*A: has 6 documents of places, must have this run's 5"
    with pytest.raises(ValueError, match=said):
        pipeline((run, None), documents=texts.select(range(5)), directory=tmp_path)


def test_an_option_that_reranking_does_not_take_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ValueError, match="rerank.a.pool=median: must be one of sum, mean, max"):
        check_form(make_seal(), "rerank.a", {"pool": "median"})
    with pytest.raises(ValueError, match=r"rerank\.bm25\.pool=sum: must be absent"):
        train(small(tmp_path, "model=bm25", "+rerank.bm25.pool=sum"))
    assert not (tmp_path / "run").exists()

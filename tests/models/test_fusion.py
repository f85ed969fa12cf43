"""Fusion: by hand, of TREC files and of runs, with weights that are chosen on a split."""

import gzip
import json
from math import inf
from pathlib import Path

import pytest
from datasets import Dataset

from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.texts import TextTable
from models.fusion import Fusion
from models.retriever import Retriever
from tests.runs import beir
from train import train

ONE = Ranking({"q": {"a": 9.0, "b": 5.0, "c": 1.0}, "r": {"a": 1.0}, "s": {"x": 2.0, "y": 1.0}})
TWO = Ranking({"q": {"c": 0.5, "d": 0.25, "a": 0.0, "lost": -inf}, "s": {"y": 1.0, "z": 1.0}})
QUERIES = Dataset.from_dict({"id": ["q", "r", "s"]})


@pytest.fixture
def files(tmp_path):
    made = [str(tmp_path / f"{name}.trec") for name in ("one", "two")]
    for file, ranking in zip(made, (ONE, TWO), strict=True):
        ranking.write(file, "tag")
    packed = made[1] + ".gz"
    Path(packed).write_bytes(gzip.compress(Path(made[1]).read_bytes()))
    return [made[0], packed]


def test_fusions_worked_out_by_hand(files):
    found = Fusion(files, k=10).retrieve(QUERIES, with_shares=True)
    first, second, third = 1 / 11, 1 / 12, 1 / 13
    expected = {"a": first + third, "c": third + first, "b": second, "d": second}
    assert found.scores("q") == pytest.approx(expected)
    assert found.documents("q") == ["c", "a", "d", "b"]  # ties: the last id first
    assert found.scores("r") == pytest.approx({"a": first})  # of a query that one run lacks
    shares = {s.tokens: s.value for s in found.shares["q"]["a"]}
    assert shares == pytest.approx({"1-one": first, "2-two": third})
    weighted = Fusion(files, "combsum", weights=[0.25, 0.75])
    expected = {"c": 0.75, "d": 0.375, "a": 0.25, "b": 0.125}
    assert weighted.retrieve(QUERIES).scores("q") == pytest.approx(expected)
    candidates = {"q": ["b", "d"], "r": [], "s": []}
    reranked = weighted.rerank(QUERIES, None, candidates)
    assert reranked.scores("q") == pytest.approx({"d": 0.75, "b": 0.25})  # each is its run's best
    summed = Fusion(files, "combsum")
    assert summed.retrieve(QUERIES, 2).scores("q") == pytest.approx({"a": 1, "c": 1})
    assert summed.retrieve(QUERIES, among=["b", "d"]).scores("q") == {"b": 1, "d": 1}
    for query, expected in (("r", {"a": 1}), ("s", {"z": 1, "y": 1, "x": 1})):
        # A single hit, or equal ones, are the best that a run found.
        assert summed.retrieve(QUERIES).scores(query) == expected


def test_equal_sums_are_ties_in_whatever_order_they_are_added(tmp_path):
    """y has the ranks 1, 2, 7 and z the ranks 7, 1, 2: in float64 the order of a sum shows."""
    files = [str(tmp_path / order) for order in ("yabcdez", "zyfghij", "kzlmnoy")]
    for file in files:
        Ranking({"q": {d: -n for n, d in enumerate(file[-7:])}}).write(file, "tag")
    found = Fusion(files).retrieve(QUERIES)
    assert found.scores("q")["y"] == found.scores("q")["z"]
    assert found.documents("q")[:2] == ["z", "y"]


def test_runs_and_files_are_fused_with_weights_of_another_split(tmp_path):
    """BM25, and a file that ranks what is relevant last."""
    place = f"data.path={beir(tmp_path / 'fruits')}"
    shared = ["data=files", place, "analysis=none", "logger=none", f"output={tmp_path}"]
    run = train(["model=bm25", *shared, "name=bm25"]).path
    rows = (tmp_path / "fruits/corpus.jsonl").read_text().splitlines()
    fruits = [json.loads(row)["_id"] for row in rows]
    names = [f"{kind}-{fruit}" for kind in "ab" for fruit in fruits]
    scores = {name: {f: -float(f == name[2:]) for f in fruits} for name in names}
    Ranking(scores).write(file := tmp_path / "worst.trec", "tag")
    options = ["model=fusion", f"model.runs=[{run},{file}]", "model.method=combsum", *shared]
    tuned = train([*options, "model.tune=train", "name=tuned"]).path
    chosen = json.loads((tuned / "model/gr_mvdr.json").read_text())["hyper_parameters"]["weights"]
    assert sum(chosen) == 1 and chosen[0] > chosen[1]
    given = train([*options, f"model.weights={chosen}", "name=given"]).path
    rankings = [Ranking.read(path / "retrieve.trec") for path in (run, tuned, given)]
    for query in rankings[0].query_ids:
        assert rankings[1].documents(query)[0] == rankings[0].documents(query)[0]
    assert rankings[1] == rankings[2]
    with pytest.raises(ValueError, match=r"worst.trec: must be a run's folder"):
        Retriever.load(tuned).search("who eats figs?")
    for split in ("test", "missing"):
        with pytest.raises(ValueError, match=f"model.tune={split}: .* not tested, one of train"):
            train([*options, f"model.tune={split}", "name=tested"])
    assert not (tmp_path / "tested").exists()
    both = f"model.runs=[{run},{run}]"
    hits = Retriever.load(train(["model=fusion", both, *shared, "name=both"]).path).search(
        "a fig?", 1
    )
    assert [hit.id for hit in hits] == ["fig"] and len(hits[0].shares) == 2


def test_what_cannot_be_fused_is_named(files, tmp_path):
    for runs, options, said in (
        (files[:1], {}, "model.runs=.*: must be two or more"),
        ([files[0], str(tmp_path / "no")], {}, "model.runs.1=.*no: no such run folder"),
        (files, {"weights": [1.0]}, r"model.weights=\[1.0\]: must be 2 numbers"),
        (files, {"weights": [1.0, 1.0], "tune": "dev"}, "model.tune=dev: must be null with"),
    ):
        with pytest.raises((ValueError, OSError), match=said):
            Fusion(runs, **options)
    with pytest.raises(ValueError, match="model.tune=dev: no weights are chosen yet"):
        Fusion(files, tune="dev").retrieve(QUERIES)
    with pytest.raises(ValueError, match="one.trec: must be a run's folder"):
        Fusion(files).retrieve(TextTable({"id": ["q"]}))

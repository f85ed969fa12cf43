"""The cases of a page: which pairs are chosen, and what the page is told of them."""

import json

import pytest
import torch

from analysis.questions.alignment_store import StoreDescription
from analysis.viewer.pairs import (
    AlignedRun,
    Candidate,
    build_cases,
    choose_cases,
    embed_json,
    to_json,
)
from tests.analysis.test_compare import rank_gold
from tests.analysis.viewer.test_session import matrices
from tests.runs import write_store


def chosen(each, successes):
    """Group → the names of its pairs."""
    candidates = [
        Candidate((name, name), *(value if isinstance(value, tuple) else (value,)))
        for name, value in successes.items()
    ]
    groups = {}
    for (name, _), group in choose_cases(candidates, each).items():
        groups.setdefault(group, []).append(name)
    return groups


def test_the_worst_come_first_and_no_pair_is_chosen_twice():
    groups = chosen(2, {name: n / 10 for n, name in enumerate("abcdefgh")})
    assert list(groups) == ["worst", "best", "random"]
    assert groups["best"] == ["h", "g"] and groups["worst"] == ["a", "b"]
    assert len(groups["random"]) == 2 and set(groups["random"]) <= set("cdef")


def test_the_score_breaks_ties_and_few_pairs_are_shared_out():
    groups = chosen(4, {"a": (1.0, 1.0), "b": (1.0, 3.0), "c": (1.0, 2.0)})
    assert groups == {"worst": ["a"], "best": ["b"], "random": ["c"]}


def stored(folder, explanation, paradigm, ranks, system="a"):
    """A run of pairs (q<n>, d<n>) whose documents stand at the given ranks."""
    names = [[f"{side}{n}" for n in range(len(explanation))] for side in "qd"]
    description = StoreDescription(system, paradigm, "fruit")
    store = write_store(folder, description, explanation, special=[2])
    return AlignedRun(system, store, rank_gold(ranks, *names))


def test_a_case_is_a_stored_pair_with_its_place_in_the_search(tmp_path, make_explanation):
    run = stored(tmp_path, make_explanation(3), "generative", [1, 4, 0])
    data = json.loads(embed_json(build_cases([run])))
    assert [(case["group"], case["query"]) for case in data["cases"]] == [
        ("worst", "q2"),
        ("best", "q0"),
        ("random", "q1"),
    ]
    case = data["cases"][2]
    view, layers = case["views"]["0"], run.store.explain(1).layers
    assert (view["rank"], view["search_score"]) == (4, -3.5)
    assert view["score"] == pytest.approx(layers[-1].score.item(), rel=1e-5)
    ids = layers[-1].document_ids[0].tolist()
    assert view["document"]["tokens"] == [f"▁w{n}" for n in ids]
    assert view["document"]["special"] == [n == 2 for n in ids]
    heads = layers[-1].alignment[0].double()  # how pairs are told: viewer/test_session.py
    assert torch.allclose(matrices(view, "alignment")[-1][1:], heads, atol=1e-4)
    assert "similarity" not in view["matrices"], "it would make a page large"
    words = [f"w{n}" for n in layers[-1].query_ids[0].tolist() if n != 2]
    assert case["text"] == " ".join(words)  # as its tokens tell it: the text was not kept


def test_a_comparison_begins_with_the_systems_that_disagree_most(tmp_path, make_explanation):
    pairs = make_explanation(6, layers=1, heads=1)
    runs = [
        stored(tmp_path / name, pairs, paradigm, ranks, name)
        for name, paradigm, ranks in (
            ("seal", "generative", [1, 1, 0, 5, 2, 2]),
            ("colbert", "multi_vector", [1, 2, 1, 0, 1, 2]),
            ("xtr", "multi_vector", [1, 2, 1, 1, 1, 2]),
        )
    ]
    data = build_cases(runs, each=2)
    cases = {case["query"]: case for case in data["cases"]}
    assert [case["query"] for case in data["cases"][:2]] == ["q2", "q3"]
    assert data["systems"][0] == "seal"
    assert [case["group"] == "disagreement" for case in data["cases"]] == [True] * 2 + [False] * 4
    assert cases["q2"]["shown"] == [0, 2] and cases["q3"]["shown"] == [1, 2]
    alone = build_cases(runs[:1], each=2)["cases"]
    assert "disagreement" not in {case["group"] for case in alone}
    assert {tuple(case["shown"]) for case in alone} == {(0,)}


def test_what_is_not_finite_is_null():
    assert to_json({"a": [float("nan"), -float("inf"), 1 / 3]}) == '{"a":[null,null,0.333333]}'

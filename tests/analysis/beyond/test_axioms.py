"""Perturbed texts, their effects by hand, and BM25's axioms."""

import shutil
from random import Random

import pytest

from analysis.beyond.axioms import ORIGINAL, find_effects, make_pairs, misspell, perturb, shuffle
from analysis.run import analyse_again
from data_modules.almanac import almanac
from gr_mvdr.analyzer import split_words
from tests.runs import TINY, undrawn


def test_letters_and_words_by_hand():
    assert misspell("an oak", Random(0)) == "an oak"  # no word of four letters
    assert misspell("to Bern", Random(0)) == "to Bren"
    assert sorted(shuffle("born in the town", Random(1)).split()) == ["born", "in", "the", "town"]


@pytest.fixture(scope="module")
def pairs():
    collection = almanac(60, seed=3)
    return make_pairs(collection, "test", collection.split_queries("test").select(range(0, 54, 6)))


def texts_of(pair):
    """What is said in the query's place, and in the document's."""
    named = [(*name.split("_", 1), text) for name, text in perturb(pair).items()]
    return [{n: text for s, n, text in named if s == side} for side in ("query", "document")]


def test_added_words(pairs):
    for pair in pairs:
        own, asked = split_words(f"{pair.document['title']} {pair.text}"), split_words(pair.query)
        said, written = texts_of(pair)
        assert " but " in said["negation"]
        start, _, term = written["rare_query_term"].rpartition(" ")
        assert start == pair.text and term in own and term in asked
        assert pair.shared[term] == min(pair.shared.values())
        common = written["common_query_term"].rpartition(" ")[2]
        assert pair.shared[common] == max(pair.shared.values()) > pair.shared[term]
        assert said["rare_term"].rpartition(" ")[2] in {*own} - {*asked}
        added = written["foreign_words"].removeprefix(pair.text)
        assert added and {*split_words(added)}.isdisjoint(asked)


def row(name, score, mean, rank, **more):
    known = {"pair": "q", "perturbation": name, "score": score, "mean": mean, "deviation": 2.0}
    return known | {"mrr@10": 1 / rank} | more


def test_effects_by_hand():
    rows = [
        row(ORIGINAL, 10.0, 4.0, 1, **{"overlap@10": 1.0}),
        row("query_typo", 9.0, 5.0, 2, deviation=4.0, **{"overlap@10": 0.25}),  # 1 after 3
        row("query_negation", 20.0, 8.0, 1, deviation=4.0),  # all scores are stretched alike
        row("document_rare_query_term", 11.0, 99.0, 1),  # of documents the first mean counts
        row("document_common_query_term", 10.5, 99.0, 20),
    ]
    effects = find_effects(rows)
    found = effects.set_index(["perturbation", "measure"])["value"].to_dict()
    assert found["query_typo", "shift"] == -2.0 and found["query_typo", "mrr@10_change"] == -0.5
    assert found["query_typo", "overlap@10"] == 0.25
    assert found["query_negation", "shift"] == 0.0 and found["negation", "holds"] == 0.0
    assert found["document_rare_query_term", "shift"] == 0.5
    assert found["tfc1", "holds"] == 1.0 and found["tdc", "holds"] == 1.0
    assert not {ORIGINAL, "lnc1"} & {name for name, _ in found}
    # Other documents of one score say nothing of scores; the metric is there all the same.
    equal = [row(ORIGINAL, 1.0, 1.0, 1, deviation=0.0), row("query_typo", 0.0, 1.0, 2)]
    assert {*find_effects(equal)["measure"]} == {"mrr@10_change"}


@pytest.fixture
def ask(tmp_path):
    """(run, **options) → what the analysis, asked so many times, finds last in a copy."""

    def ask(run, times=1, **options):
        question, prefix = (
            {"_target_": "analysis.beyond.axioms.Axioms", **options},
            "analysis/axioms/",
        )
        copied = shutil.copytree(run, tmp_path / run.name, dirs_exist_ok=True)
        with undrawn():
            questions = {f"axioms {number}": question for number in range(times)}
            found = analyse_again(copied, {"pairs": 0, "questions": questions})
        return {key.removeprefix(prefix): v for key, v in found.items() if key.startswith(prefix)}

    return ask


@pytest.mark.slow
def test_bm25_keeps_its_axioms(ask, finished_run):
    found = ask(finished_run("bm25", "data.test_split=test"), queries=8, others=8)
    assert found["query_word_order/shift"] == pytest.approx(0, abs=1e-5)  # a bag of words
    assert found["query_word_order/overlap@10"] == 1
    assert found["tfc1/holds"] == 1 and found["tdc/holds"] == 1
    assert found["query_typo/shift_low"] <= found["query_typo/shift"]


@pytest.mark.slow
def test_documents_return_to_their_places_after_their_perturbation(ask, finished_run):
    run = finished_run("t5_colbert", *TINY)
    first = ask(run, queries=4)
    assert "document_rare_query_term/shift" in first
    assert ask(run, times=2, queries=4) == pytest.approx(first, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("split", [(), ("data.passages={words: 14, stride: 7}",)])
def test_a_planned_docid_system_drifts_with_its_plan(ask, finished_run, split):
    plan = finished_run("bm25", *split)
    bm25 = ask(plan, queries=4, side="query")
    planned = ask(
        finished_run("dsi_naive", *TINY, *split, f"model.search.plan.scores={plan}"),
        queries=4,
        side="query",
    )
    drift = bm25["query_typo/overlap@10"]
    assert 0 < drift < 1 and planned["query_typo/plan_overlap@10"] == drift
    assert planned["query_word_order/plan_overlap@10"] == 1
    assert not any(key.startswith("document") for key in planned)

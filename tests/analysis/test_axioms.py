"""Perturbed texts, their effects by hand, and BM25's axioms."""

import re
from random import Random

import pandas
import pytest

from analysis.axioms import (
    ORIGINAL,
    compare_axioms,
    find_effects,
    make_pairs,
    misspell,
    perturb,
    shuffle,
    summarise,
)
from analysis.tables.comparison import compare_runs
from data_modules.almanac import almanac
from gr_mvdr.evaluation.bm25 import split_words
from models.retriever import Retriever
from tests.runs import TINY, command, undrawn


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
    named = [(*name.split(": "), text) for name, text in perturb(pair).items()]
    return [{n: text for s, n, text in named if s == side} for side in ("query", "document")]


def test_added_words_and_removed_ones(pairs):
    for pair in pairs:
        own, asked = split_words(f"{pair.document['title']} {pair.text}"), split_words(pair.query)
        said, written = texts_of(pair)
        assert " but " in said["negation"]
        start, _, term = written["rare query term"].rpartition(" ")
        assert start == pair.text and term in own and term in asked
        assert pair.shared[term] == min(pair.shared.values())
        common = written["common query term"].rpartition(" ")[2]
        assert pair.shared[common] == max(pair.shared.values()) > pair.shared[term]
        assert said["rare term"].rpartition(" ")[2] in {*own} - {*asked}
        added = written["foreign words"].removeprefix(pair.text)
        assert added and {*split_words(added)}.isdisjoint(asked)
        (start, end) = pair.answer[0]
        assert not re.search(
            rf"(?<!\w){re.escape(pair.text[start:end])}(?!\w)", written["without the answer"]
        )
        for start, end in pair.given:
            assert written["without the given"].count(pair.text[start:end]) < pair.text.count(
                pair.text[start:end]
            )


def row(name, score, mean, rank, query="q", **more):
    known = {"split": "test", "query": query, "perturbation": name, "score": score, "mean": mean}
    known |= {"deviation": 2.0, "rank": rank, "mrr@10": 1 / rank, "recall@10": float(rank <= 10)}
    return known | more


def test_effects_by_hand():
    rows = [
        row(ORIGINAL, 10.0, 4.0, 1, **{"overlap@10": 1.0}),
        row("query: typo", 9.0, 5.0, 2, **{"overlap@10": 0.25}),  # margins 6 and 4, deviation 2
        row("query: negation", 12.0, 6.0, 1),  # all scores rise alike
        row("document: rare query term", 11.0, 99.0, 1),  # of documents the first mean counts
        row("document: common query term", 10.5, 99.0, 20),
    ]
    effects = find_effects(rows)
    found = effects.set_index(["perturbation", "measure"])["value"].to_dict()
    assert found["query: typo", "shift"] == -1.0 and found["query: typo", "mrr@10"] == -0.5
    assert found["query: typo", "overlap@10"] == 0.25 and (ORIGINAL, "overlap@10") not in found
    assert found["query: negation", "shift"] == 0.0 and found["negation", "holds"] == 0.0
    assert found["document: rare query term", "shift"] == 0.5
    assert found["TFC1: one more query term", "holds"] == 1.0
    assert found["TDC: the rarer query term", "holds"] == 1.0
    assert found["document: common query term", "rank"] == 19
    assert found[ORIGINAL, "mrr@10"] == 1.0 and (ORIGINAL, "shift") not in found
    assert not any(name.startswith("LNC1") for name, _ in found)
    # Other documents of one score say nothing of scores; ranks are there all the same.
    equal = [row(ORIGINAL, 1.0, 1.0, 1, deviation=0.0), row("query: typo", 0.0, 1.0, 2)]
    assert {*find_effects(equal)["measure"]} == {"rank", "mrr@10", "recall@10"}


def test_a_pair_counts_once_whatever_the_number_of_seeds():
    def seed(typo):
        return [
            r
            for query, rank in (("q", typo), ("p", 4))
            for r in (row(ORIGINAL, 4, 0, 1, query), row("query: typo", 2, 0, rank, query))
        ]

    found = summarise([seed(2), seed(4)])
    (found,) = (r for r in found if (r["perturbation"], r["measure"]) == ("query: typo", "rank"))
    assert found["pairs"] == 2 and found["value"] == 2.5  # (1 + 3) / 2 and 3
    assert (found["low"], found["high"]) == (2.0, 3.0)


@pytest.mark.slow
def test_bm25_keeps_its_axioms_and_its_documents(tmp_path, finished_run, monkeypatch):
    run = finished_run("bm25", "data.test_split=test")
    comparison = compare_runs([run])
    with undrawn():
        rows = compare_axioms(comparison, tmp_path / "axioms", queries=8, others=8)
    found = {(r["perturbation"], r["measure"]): r for r in rows}
    for side in ("query", "document"):  # to BM25 a text is a bag of words
        assert found[f"{side}: word order", "shift"]["value"] == pytest.approx(0, abs=1e-5)
        assert found[f"{side}: word order", "rank"]["value"] == 0
    assert found["TFC1: one more query term", "holds"]["value"] == 1
    assert found["TDC: the rarer query term", "holds"]["value"] == 1
    assert found["document: without the given", "mrr@10"]["value"] < 0
    # What was measured is not measured again.
    monkeypatch.setattr(Retriever, "load", None)
    with undrawn():
        assert compare_axioms(comparison, tmp_path / "axioms", queries=8, others=8) == rows


@pytest.mark.slow
def test_a_planned_docid_system_drifts_with_its_plan(tmp_path, finished_run, capsys):
    plan = finished_run("bm25")
    run = finished_run("dsi_naive", *TINY, f"model.search.plan.scores={plan}")
    with undrawn():
        assert not command(
            *("-m", "analysis.axioms", f"runs=[{plan},{run}]", "queries=4", "side=query"),
            f"output={tmp_path}/found",
        )
    table = (tmp_path / "found" / "axioms.md").read_text()
    assert "query: typo" in table and "document: typo" not in table
    assert str(tmp_path / "found" / "axioms.png") in capsys.readouterr().out
    rows = pandas.read_csv(tmp_path / "found" / "axioms.csv")
    lexical, planned = rows["system"].unique()
    keys = (lexical, "overlap@10"), (planned, "overlap@10"), (planned, "plan overlap@10")
    drift = rows.set_index(["split", "perturbation"]).sort_index().groupby(["system", "measure"])
    bm25, docids, plan = (drift.get_group(key)["value"] for key in keys)
    assert plan.equals(bm25) and not docids.equals(bm25)
    typos = bm25.xs("query: typo", level="perturbation")
    assert typos.between(0, 1, inclusive="neither").all() and "original" not in bm25.index.unique(1)

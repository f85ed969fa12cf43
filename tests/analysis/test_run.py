import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from omegaconf import OmegaConf

from analysis.figures import read_gallery
from analysis.questions.analysis import Subject, Texts
from analysis.questions.tokens import TokenKinds
from analysis.run import ask, join_settings, write_findings
from analysis.runs.glossary import TERMS, Glossary, declared_terms
from analysis.runs.numbers import describe, make_frame
from gr_mvdr.files import write_json
from gr_mvdr.measures import Group
from gr_mvdr.options import find_part
from tests.runs import compose_config, flat, rows_of

LISTED = OmegaConf.load(Path(__file__).parents[2] / "conf/analysis/full.yaml")
LISTED = OmegaConf.to_container(OmegaConf.create({"analysis": LISTED}), resolve=True)["analysis"]
ALONE = "kernel", "ranking", "query", "decoded", "token_retrieval", "deletion", "curve", "search"
ALONE += ("best_documents", "length_bias", "patching")
STORED = {name: asked for name, asked in LISTED["questions"].items() if name not in ALONE}
MEASURED = {name: asked for name, asked in STORED.items() if name != "heatmaps"}
VOCABULARY = 30


def texts_of(store):
    no = torch.zeros(VOCABULARY, dtype=torch.bool)
    special = no.clone()
    special[:2] = True
    gold = {}
    for number, pair in enumerate(store.pairs):
        answer = torch.zeros(store[number].document_ids.shape[1], dtype=torch.bool)
        answer[0] = True
        gold[pair] = torch.stack([answer, ~answer])
    return Texts(
        idf=torch.linspace(0, 10, VOCABULARY),
        kinds=TokenKinds(special=special, punctuation=no, stopword=no),
        strings=lambda ids: list(map(str, ids)),
        gold=gold,
    )


@pytest.mark.parametrize("paradigm", ["multi_vector", "generative", "lexical"])
def test_every_listed_analysis_is_asked_of_every_paradigm(
    tmp_path, make_explanation, store_of, paradigm, monkeypatch
):
    drawn = paradigm == "generative"  # drawing takes most of the time
    monkeypatch.setattr("analysis.figures.DOTS", 40)
    if not drawn:
        monkeypatch.setattr(
            "analysis.figures.save_figure", lambda _, to, name: to.mkdir(exist_ok=True)
        )
    store = store_of(make_explanation(6, paradigm=paradigm), paradigm)
    found = ask(Subject(store=store, texts=texts_of(store)), STORED)
    rows = write_findings(found, tmp_path)
    metrics = flat(rows)
    assert all(key.startswith("analysis/") for key in metrics)
    assert 0 <= metrics["analysis/exact_match/document_to_query/soft"] <= 1
    assert 0 <= metrics["analysis/low_rank/relative_error"] <= 1
    tables = [name for measured in found for name in measured.tables]
    assert len(tables) == len(set(tables)) and "exact_match" in tables
    assert all((tmp_path / f"{name}.csv").stat().st_size > 0 for name in tables)
    gallery = read_gallery(tmp_path / "figures")
    for entry in gallery if drawn else []:
        for kind in ("png", "pdf"):
            assert (tmp_path / "figures" / f"{entry.name}.{kind}").stat().st_size > 1000
    assert ("analysis/framework/sum_error" in metrics) == (paradigm == "generative")
    json.dumps(metrics, allow_nan=False)
    assert unexplained(rows) == []


def unexplained(rows, names="name"):
    """The names of numbers that hold a word which a page's glossary lacks."""
    table = describe(make_frame(rows))
    terms, left = Glossary(declared_terms(table)), {}
    for name in table[names]:
        left[name] = name
        for start, end, _ in reversed(list(terms.find(name))):
            left[name] = left[name][:start] + left[name][end:]
    return [name for name, rest in left.items() if rest.strip()]


def test_the_glossary_explains_what_runs_measure():
    names = "retrieve/recall@1000 retrieve/ndcg@10 rerank/leak_free_max/mrr@10 cost/index_bytes"
    names += " cost/train_seconds cost/query_ms_p95 cost/scoring_flops"
    names += " cost/shared_terms cost/plan_ms"
    rows = rows_of(dict.fromkeys(names.split(), 1.0))
    kinds = [find_part("analysis", line["_target_"]) for line in LISTED["questions"].values()]
    for kind in kinds:
        group = Group(kind.name, kind.title, kind.reading)
        rows += [metric.row(1.0, group=group) for metric in kind.metrics]
    assert unexplained(rows, "label") == []


def test_a_term_is_found_whole_in_every_form():
    terms = Glossary({"gold@#": "Of rank k."})
    for entry, text in TERMS.items():
        forms = entry.split(" | ")
        first = forms[0].replace("#", "k")
        assert terms.terms[first] == text
        for form in forms:
            shown = form.replace("#", "10")
            assert list(terms.find(shown)) == [(0, len(shown), first)]
    found = terms.find("n-grams of a multi vector; R@ten, unshared, MRR@10x")
    assert [term for *_, term in found] == ["n-gram key", "multi-vector"]


def test_batches_change_nothing(tmp_path, make_explanation, store_of, monkeypatch):
    store = store_of(make_explanation(9), "generative")
    monkeypatch.setattr("analysis.run.Gallery", Mock())  # drawing takes most of the time
    subject = Subject(store=store, texts=texts_of(store))
    whole = flat(write_findings(ask(subject, MEASURED), tmp_path))
    monkeypatch.setattr("analysis.run.BATCH", 2)
    parts = flat(write_findings(ask(subject, MEASURED), tmp_path))
    assert whole.keys() == parts.keys()
    for key, value in whole.items():
        assert value == pytest.approx(parts[key], rel=1e-4, abs=1e-5), key


PAGE = Path(__file__).parents[2] / "docs/analysis.md"


def test_the_documented_example_is_an_analysis(
    tmp_path, make_explanation, store_of, monkeypatch, capsys
):
    """What docs/analysis.md asks of a new analysis: a class in a file of one's own, and a line."""
    _, _, text = PAGE.read_text().partition("`aligned_share.py`:\n\n```python\n")
    (tmp_path / "my_module.py").write_text(text.partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    store = store_of(make_explanation(3, paradigm="multi_vector"), "multi_vector")
    line = {"mine": {"_target_": "my_module.AlignedShare"}}
    (found,) = ask(Subject(store=store, texts=texts_of(store)), line)
    assert 0 < found.metrics["analysis/aligned_share/share"] <= 1
    assert ask(Subject(), line) == []  # no alignments are stored, and one's own are missed
    assert "analysis.questions.mine: does not apply" in capsys.readouterr().out
    asked = ["run=x", "analysis=none", "+analysis.questions.mine._target_=my_module.AlignedShare"]
    assert compose_config("analyse", *asked[:2]).analysis.pairs == 0
    assert compose_config("analyse", *asked).analysis.pairs == 500  # what it measures is stored
    assert {row.group.title for row in found.rows} == {"Aligned tokens"}


def test_numbers_of_other_pairs_never_stay_beside_new_ones(tmp_path):
    one, whole = {"_target_": "a.Question"}, {"pairs": 500, "precision": "float32"}
    made = {"questions": {"a": one, "b": one, "off": one | {"queries": 0}}} | whole
    run = SimpleNamespace(path=tmp_path, config={"analysis": made})
    again = join_settings(run, made | {"pairs": 2000})
    assert again == made | {"pairs": 2000}
    further = join_settings(run, {"pairs": 0, "questions": {"c": one, "b": None}})
    assert further == made | {"questions": made["questions"] | {"c": one}}
    write_json(tmp_path / "analysed.json", again)
    with pytest.raises(ValueError, match="analysis.pairs=500: must be 2000, as for b, or these"):
        join_settings(run, whole | {"questions": {"a": one}})

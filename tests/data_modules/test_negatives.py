"""Hard negatives: never relevant, never new, with their teacher's scores."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from datasets import Dataset

from data_modules.examples import DocumentExamples, Example, HardNegatives, collate
from data_modules.module import RetrievalDataModule
from data_modules.negatives import (
    Bm25Negatives,
    OwnNegatives,
    RunNegatives,
    TripleNegatives,
)
from gr_mvdr.evaluation.bm25 import count_terms
from gr_mvdr.tokenizers import EOS_ID
from tests.data_modules.tiny import TOKENIZER, make_collection, written

pytestmark = pytest.mark.usefixtures("cache")

COLOURS = "red blue green black white grey brown pink gold plum".split()
N_DOCUMENTS, NEW, QUERIES = 14, 13, 6


class Tiny(RetrievalDataModule):
    """Fourteen documents; d13 is asked about after training, q0 has two relevant documents.

    Queries 0 to 5 train, q6 validates, q7 tests. Documents share words with many queries.
    """

    own: ClassVar[dict[str, Path]] = {}

    def read(self):
        texts = [f"{COLOURS[n % 10]} {COLOURS[(n + 1) % 10]} stone" for n in range(N_DOCUMENTS)]
        queries = {f"q{n}": " ".join(COLOURS[n : n + 3]) for n in range(8)}
        qrels = {
            "train": [(f"q{n}", f"d{n}") for n in range(QUERIES)] + [("q0", "d10")],
            "dev": [("q6", "d6")],
            "test": [("q7", "d7"), ("q7", "d13")],
            "new": [("q7", "d13")],
        }
        return make_collection(texts, queries, qrels=qrels, negatives=self.own)


def tiny(negatives=None, **options):
    defaults = dict(
        test_split="test",
        new_documents=["new"],
        tokenizer_options=TOKENIZER,
        examples=DocumentExamples(negatives),
        document_length=6,
        batch_size=3,
    )
    return Tiny(**{**defaults, **options})


def drawn(data, epochs=30):
    """Pair number → the negative documents of many epochs, each as a frozen set."""
    found = {}
    for number in range(epochs):
        for pair, example in enumerate(data.epoch(number)):
            found.setdefault(pair, []).append(frozenset(example.negatives.documents))
    return found


RELEVANT = {0: {0, 10}, 6: {0, 10}} | {pair: {pair} for pair in range(1, 6)}
RUN = ["q0 Q0 d0 1 9 x", "q0 Q0 d1 2 8 x", "q0 Q0 d2 3 7 x", "q0 Q0 d3 4 6 x"]


# What is drawn


def test_bm25_negatives_are_the_best_documents_that_are_not_relevant_and_not_new():
    data = tiny(Bm25Negatives(n=1, depth=5))
    found, documents = drawn(data), data.documents.select(data.known_documents)
    known = count_terms(documents["id"][:], map(data.analyzer.terms, documents["text"])).bm25()
    queries = [" ".join(COLOURS[n : n + 3]) for n in range(QUERIES)]
    for pair, sets in found.items():
        best = known.best(data.analyzer.terms(queries[pair % 6]), 5)
        assert f"d{NEW}" not in best
        expected = {int(name[1:]) for name in best} - RELEVANT[pair]
        assert len(expected) > 1 and set().union(*sets) == expected, pair
    tokens = [data.tokenizer(query)["input_ids"] for query in queries]
    assert any(f"d{NEW}" in data.evaluation.bm25.best(ids, 5) for ids in tokens)


def test_negatives_that_came_with_the_collection(tmp_path, monkeypatch):
    run = written(tmp_path / "hard.trec", *RUN)
    monkeypatch.setattr(Tiny, "own", {"hard": run})
    assert set().union(*drawn(tiny(OwnNegatives(name="hard", n=1)))[0]) == {1, 2, 3}
    with pytest.raises(ValueError, match=r"negatives\.name=easy: must be of .* own: hard"):
        tiny(OwnNegatives(name="easy", n=1)).epoch(0)
    assert drawn(tiny(OwnNegatives(name=None, n=1))) == drawn(tiny(OwnNegatives(name="hard", n=1)))
    monkeypatch.setattr(Tiny, "own", {"hard": run, "easy": run})
    with pytest.raises(ValueError, match=r"negatives\.name=null: must be of .* own: hard, easy"):
        tiny(OwnNegatives(name=None, n=1)).epoch(0)


def test_too_few_candidates_are_filled_up_at_random(tmp_path, capsys):
    run = str(written(tmp_path / "run.trec", *RUN, "q1 Q0 d1 1 2 x", "q2 Q0 d9 1 2 x"))
    data = tiny(RunNegatives(path=run, n=3))
    found = drawn(data, 60)
    assert set(found[0]) == {frozenset({1, 2, 3})}, "as many as asked for"
    everything = set(range(N_DOCUMENTS - 1))
    assert set().union(*found[1]) == everything - {1}, "its only candidate is relevant"
    assert all(9 in chosen and len(chosen) == 3 for chosen in found[2])
    assert set().union(*found[2]) == everything - {2}
    assert "5 of 6 training queries have fewer than 3 candidates" in capsys.readouterr().out


def test_triples_give_each_query_its_negatives(tmp_path):
    lines = ["q0 d0 d4", "q0 d10 d5", "q0 d8 d9", "q0 d4 d8", "q1 d1 d12", "q1 d1 d12"]
    found = drawn(tiny(TripleNegatives(path=str(written(tmp_path / "triples.tsv", *lines)))))
    # d4 and d8 are called positive by a triple, d12 is the one candidate of q1.
    assert set().union(*found[0]) == {5, 9} and set(found[1]) == {frozenset({12})}


def test_more_negatives_than_documents_are_refused():
    # Of 13 known documents, q0 leaves 11.
    assert len(tiny(Bm25Negatives(n=11)).epoch(0)[0].negatives.documents) == 11
    with pytest.raises(ValueError, match="data.examples.negatives.n=12: must be ≤ 11, the known"):
        tiny(Bm25Negatives(n=12)).epoch(0)


# Teachers


@pytest.mark.parametrize("form", ["run", "margins"])
def test_a_teacher_scores_the_negatives_of_any_source(form, tmp_path, capsys):
    run = str(written(tmp_path / "run.trec", *RUN, "q1 Q0 d5 1 1 x"))
    lines = {
        "run": ["q0 Q0 d0 1 9 t", "q0 Q0 d3 2 5 t", "q0 Q0 d9 3 4 t", "q2 Q0 d9 1 1 t"],
        "margins": ["9 5 q0 d0 d3", "9 4 q0 d0 d9", "0 1 q2 d12 d9"],
    }
    teacher = str(written(tmp_path / "teacher", *lines[form]))
    data = tiny(RunNegatives(path=run, n=1, teacher=teacher))
    for number in range(10):
        examples = list(data.epoch(number))
        assert examples[0].negatives == ([[*data.documents[3]["tokens"], EOS_ID]], [3], [9.0, 5.0])
        assert examples[6].negatives.documents == [3], "the one candidate that was scored"
        assert np.isnan(examples[6].negatives.teacher[0]), "d10 was not"
        assert np.isnan(examples[1].negatives.teacher).all()
    assert "6 of 7 training pairs have no score by the teacher" in capsys.readouterr().out
    batch = collate(list(data.epoch(0)))
    assert batch.teacher.shape == (7, 2) and batch.teacher.dtype == torch.float32
    assert batch.teacher[0].tolist() == [9.0, 5.0]


def teach(negatives):
    """(pair, document) → the teacher's score, of positives and drawn negatives of many epochs."""
    found, data = {}, tiny(negatives)
    for number in range(20):
        for pair, example in enumerate(data.epoch(number)):
            documents = [example.document, *example.negatives.documents]
            scores = zip(documents, example.negatives.teacher, strict=True)
            found |= {(pair, row): score for row, score in scores if not np.isnan(score)}
    return found


# d13 arrives after training.
LISTS = {
    "q0": {"d0": 2.5, "d4": 1.5, "d5": -1.0, "d13": 9.0},
    "q1": {"d1": 0.5, "d6": 3.0},
    "q7": {"d1": 1.0},
}
TAUGHT = {(0, 0): 2.5, (1, 1): 0.5, (1, 6): 3.0}
TAUGHT |= {(pair, row): score for pair in (0, 6) for row, score in [(4, 1.5), (5, -1.0)]}


@pytest.mark.parametrize("form", ["ids", "texts", "other ids"])
@pytest.mark.parametrize("source", ["triples", "run"])
def test_a_teachers_lists_are_matched_by_id_or_by_text(source, form, tmp_path, capsys):
    collection = Tiny(test_split="test", tokenizer_options=TOKENIZER).read()
    queries = dict(zip(collection.queries["id"], collection.queries["text"], strict=True))
    documents = dict(zip(collection.documents["id"], collection.documents["text"], strict=True))
    scored = [*LISTS.values()]
    columns = {"scores": [[*scores.values()] for scores in scored]}
    if form == "texts":
        columns["query"] = [f" {queries[query]}\n" for query in LISTS]
        columns["documents"] = [[documents[d].replace(" ", "  ") for d in own] for own in scored]
    else:
        # The tables of texts decide: here d4 is another source's d0, and so on.
        other = {d: f"d{(int(d[1:]) + 10) % 14}" if form == "other ids" else d for d in documents}
        columns |= dict(query_id=[*LISTS], document_ids=[[other[d] for d in own] for own in scored])
        if form == "other ids":
            texts = [{"document_id": other[d], "text": text} for d, text in documents.items()]
            Dataset.from_list(texts).to_parquet(tmp_path / "documents.parquet")
    Dataset.from_dict(columns).save_to_disk(tmp_path / "train")
    path = str(tmp_path)
    kinds = {
        "triples": TripleNegatives(path=path, n=2),
        "run": RunNegatives(path=path, teacher=path, n=2),
    }
    found, data = teach(kinds[source]), tiny(kinds[source])
    # Documents of equal texts are one: d0 and d10, d3 and d13.
    assert {key: found[key] for key in TAUGHT} == TAUGHT
    # d13 is unknown by its id; its text is d3's.
    assert f"{5 if form == 'ids' else 6} of 7 pairs are used" in capsys.readouterr().out
    assert len(data.training_sources) == (2 if form == "other ids" else 1)


def test_the_folder_of_a_run_stands_for_its_ranking(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    written(run / "config.yaml", "{}")
    for key in ("path", "teacher"):
        options = dict(path=str(written(tmp_path / "run.trec", *RUN))) | {key: str(run)}
        (run / "retrieve.trec").unlink(missing_ok=True)
        with pytest.raises(
            ValueError, match=rf"negatives\.{key}=.*run: must be a finished run, it "
        ):
            RunNegatives(**options, n=1)
        written(run / "retrieve.trec", *RUN)
        assert set().union(*drawn(tiny(RunNegatives(**options, n=1)))[0]) == {1, 2, 3}
    taught = teach(RunNegatives(path=str(run), teacher=str(run), n=3))
    assert taught[0, 0] == 9 and [taught[0, row] for row in (1, 2, 3)] == [8, 7, 6]
    with pytest.raises(ValueError, match="teacher=no: must be an existing file or folder"):
        RunNegatives(path=str(run), teacher="no", n=1)


# Files


def test_a_file_that_names_nothing_known_is_refused(tmp_path):
    other = str(written(tmp_path / "other.tsv", "7 d0 d4", "8 d1 d2"))
    rule = "none of its 4 pairs can be used: 4 are of queries"
    with pytest.raises(ValueError, match=rf"data.examples.negatives.path={other}: {rule}"):
        tiny(TripleNegatives(path=other)).epoch(0)
    teacher = str(written(tmp_path / "other.trec", "q0 Q0 4 1 1 x"))
    rule = "none of its 1 pairs can be used: 0 .*, 1 name documents that are not known"
    with pytest.raises(ValueError, match=rf"data.examples.negatives.teacher={teacher}: {rule}"):
        tiny(Bm25Negatives(n=1, teacher=teacher)).epoch(0)


# Batches


def test_a_batch_holds_every_document_once_behind_the_positives():
    examples = [
        Example(
            [5, 6], [[10, 1]], 4, HardNegatives([[20, 21, 1], [11, 1]], [7, 2], [3.0, 1.0, 0.0])
        ),
        Example([7], [[11, 1]], 2, HardNegatives([[20, 21, 1], [30]], [7, 9], [2.0, 1.0, np.nan])),
        Example([8], [[10, 1]], 4, HardNegatives([[30], [11, 1]], [9, 2], [1.0, 1.0, 1.0])),
    ]
    batch = collate(examples)
    assert len(batch) == 3 and batch.document_index.tolist() == [4, 2, 4, 7, 9]
    assert batch.document_ids.tolist() == [
        [10, 1, 0],
        [11, 1, 0],
        [10, 1, 0],
        [20, 21, 1],
        [30, 0, 0],
    ]
    assert batch.document_mask.sum(1).tolist() == [2, 2, 2, 3, 1]
    assert batch.negatives.tolist() == [[3, 1], [3, 4], [4, 1]]
    assert batch.negatives.dtype == torch.int64 and batch.teacher.dtype == torch.float32
    assert batch.teacher[0].tolist() == [3.0, 1.0, 0.0] and batch.teacher[1, 2].isnan()

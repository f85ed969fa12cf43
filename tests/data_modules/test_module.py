import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from datasets import Dataset

from analysis.runs.evaluation import evaluate_retrieval
from data_modules.examples import DocumentExamples, Example, collate
from data_modules.module import RetrievalDataModule
from data_modules.negatives import Bm25Negatives
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.passages import document_ids
from tests.data_modules.tiny import TOKENIZER, judge, make_collection, words

pytestmark = pytest.mark.usefixtures("cache")


def collection():
    train = [(f"q{n}", f"d{2 * n}") for n in range(10)] + [("q0", "d7", 2), ("q1", "d8", 0)]
    test = [(f"q{n}", f"d{n}") for n in range(10, 20)] + [("q10", "d29"), ("q11", "d3", 0)]
    return make_collection(
        documents=[words(n, 5 + n) for n in range(30)],
        queries={f"q{n}": words(100 + n, 2 + n % 5) for n in range(20)},
        titles=[f"title{n}" for n in range(30)],
        qrels={"train": train, "test": test, "dev": [("q3", "d3")]},
    )


class Tiny(RetrievalDataModule):
    def read(self):
        return collection()


def tiny(**options):
    return Tiny(**{"test_split": "test", "tokenizer_options": TOKENIZER, **options})


def test_examples_with_several_targets_are_taken_apart_where_others_have_one():
    """A model finds as many targets for every source of a batch."""
    batch = collate([Example([5, 6], [[10, 1], [11]], 4), Example([7], [[14, 1]], 2)])
    assert batch.query_ids.tolist() == [[5, 6], [5, 6], [7, 0]]
    assert batch.document_ids.tolist() == [[10, 1], [11, 0], [14, 1]]
    assert batch.document_index.tolist() == [4, 4, 2]


class Arriving(RetrievalDataModule):
    """The tiny collection, whose documents of `test` have two words of their own, or without them.

    Args:
        arrived: False = without the documents that `new_documents=[test]` keeps from training.
    """

    def __init__(self, arrived, **options):
        self.arrived = arrived
        super().__init__(test_split="test", **options)

    def read(self):
        found, new = collection(), {f"d{row}" for row in (11, 13, 15, 17, 19, 29)}
        rows = [dict(row) for row in found.documents]
        for row in rows:
            row["text"] += " zirkonium quetzal" * (row["id"] in new)
        kept = [row for row in rows if self.arrived or row["id"] not in new]
        return replace(found, documents=Dataset.from_list(kept))


def test_training_reads_what_it_would_without_the_new_documents():
    """Tokeniser, training pairs and BM25's negatives, each with the rest of a document's data."""
    options = dict(
        tokenizer_options=TOKENIZER | {"unit": "piece", "vocab_size": 60},
        examples=DocumentExamples(Bm25Negatives(n=2, depth=6)),
    )
    held = Arriving(True, new_documents=["test"], **options)
    alone = Arriving(False, **options)
    everything = Arriving(True, **options)
    pieces = [data.tokenizer.backend_tokenizer.to_str() for data in (held, alone, everything)]
    assert pieces[0] == pieces[1] != pieces[2]
    assert held.text_options != everything.text_options
    examples = []
    for data in (held, alone):
        ids = data.documents["id"][:]
        drawn = [(e, [ids[row] for row in e.negatives.documents]) for e in data.epoch(1)]
        examples.append([(e.source, e.targets, ids[e.document], names) for e, names in drawn])
    assert examples[0] == examples[1]
    # A search reads all of them.
    assert len(held.evaluation.bm25.best(held.analyzer.terms("zirkonium"), 40)) == 6


def test_the_language_is_that_of_whole_documents():
    """Most passages of tables are names and numbers, in no language."""
    text = "The town has a wall and it is by the sea. " * 8 + "Ouse 3.5 | " * 400
    data = tiny(passages={"words": 20, "stride": 20}, language="auto")
    data.read = lambda: make_collection([text] * 20, {"q": "Ouse"}, qrels={"test": [("q", "d0")]})
    assert data.analyzer.language == "en"


@pytest.mark.parametrize("key", ["test_split", "train_split", "validation_split", "new_documents"])
def test_an_unknown_split_names_the_splits_there_are(key):
    value = ["nope"] if key == "new_documents" else "nope"
    with pytest.raises(ValueError, match=rf"data.{key}=nope: must be one of dev, test, train"):
        _ = tiny(**{key: value}).collection


def test_a_validation_split_is_found_or_held_out_and_never_tested():
    def validated(**options):
        data = tiny(validation_split="auto", **options)
        return data, {*data.collection.qrels["train"]["query_id"]}, data.validation_split

    every = {*collection().qrels["train"]["query_id"]}
    assert validated()[1:] == (every, "dev")
    many = judge(*[(f"q{number}", "d1") for number in range(400)])
    more = judge(*[(f"q{number}", "d1") for number in range(900)])
    held = []
    for train in (many, more):
        data = tiny(validation_split="auto", test_split="dev", validation={"hold_out": 0.1})
        data.read = lambda train=train: replace(collection(), qrels={"train": train, "dev": train})
        kept = {*data.collection.qrels["train"]["query_id"]}
        held.append({*data.collection.qrels[data.validation_split]["query_id"]})
        assert data.validation_split == "held_out" and not kept & held[-1]
        assert len(kept | held[-1]) == len(train)
        assert data.known_documents.tolist() == list(range(len(collection().documents)))
    # Drawn by the ids: further queries change nothing for the others.
    assert held[0] == {name for name in held[1] if int(name[1:]) < 400}
    # Too few to choose by, or none wanted.
    assert validated(test_split="dev", validation={"hold_out": 0.1})[1:] == (every, None)
    assert validated(test_split="dev")[1:] == (every, None)
    data = tiny(validation_split="dev", test_split=["test", "dev"])
    with pytest.raises(ValueError, match="data.validation_split=dev: must not be tested"):
        data.check_splits(trained=True, study=False)


def test_what_does_not_train_needs_no_train_split():
    def judged(**options):
        data = tiny(**options)
        data.read = lambda: replace(collection(), qrels={"test": collection().qrels["test"]})
        return data

    data = judged()
    data.check_splits(trained=False, study=True)
    assert data.train_split is None and data.evaluation.test_splits == ["test"]
    assert len(data.evaluation.test_queries("test")) and len(data.tokenizer)
    with pytest.raises(ValueError, match="data.train_split=null: must .*: weights=RUN takes over"):
        data.check_splits(trained=True, study=False)
    with pytest.raises(ValueError, match="data.train_split=typo: must be one of test$"):
        _ = judged(train_split="typo").collection


# Evaluation


def test_a_search_is_not_tuned_on_a_split_that_is_tested():
    def check(plans, **options):
        needs = dict(needs_negatives=False, tuning_split=None)
        model = SimpleNamespace(trainable=True, tunes_search=plans, **needs)
        tiny(test_split=["test", "train"], **options).check_system(model, trained=True)

    check(False)  # nothing is chosen
    check(True, validation_split="dev")
    check(True, train_split=None)  # it is chosen on documents
    for options in ({}, {"validation_split": "test"}):
        with pytest.raises(ValueError, match="data.test_split=.*: must not name train, on which"):
            check(True, **options)


def test_a_relevant_document_has_a_grade_above_0():
    data, judged = tiny(), judge(("q10", "d1", 0), ("q10", "d2", 2), ("q10", "gone", 1))
    data.collection = replace(collection(), qrels=collection().qrels | {"test": judged})
    queries = data.evaluation.test_queries("test")
    assert data.evaluation.relevant("test", queries) == {"q10": ["d2", "gone"]}


def test_candidates_come_from_a_file_the_collection_or_bm25(tmp_path, capsys):
    run = tmp_path / "some.trec"
    lines = [f"q{n} Q0 d{m} 1 {m} x" for n in range(10, 20) for m in (1, 25)]
    run.write_text("\n".join([*lines, "q10 Q0 nowhere 3 1 x"]))
    data = tiny(candidates_run=str(run))
    queries = data.evaluation.rerank_queries("test")
    given = data.evaluation.list_candidates("test", queries)
    assert given["q10"] == ["d25", "d1", "d10", "d29"] and given["q12"] == ["d25", "d1", "d12"]
    assert "1 candidates are not in the collection" in capsys.readouterr().out
    own = replace(collection(), candidates={"test": run})
    assert tiny().evaluation.list_candidates("test", queries) != given
    data = tiny()
    data.collection = own
    assert data.evaluation.list_candidates("test", queries) == given
    run.write_text("\n".join(lines[2:]))
    with pytest.raises(ValueError, match=r"1 of 10 queries have no candidate .* first is 'q10'"):
        tiny(candidates_run=str(run)).evaluation.candidates_from  # noqa: B018, before training
    data = tiny()
    data.collection = own
    assert (
        data.evaluation.list_candidates("test", queries)["q10"]
        == tiny().evaluation.list_candidates("test", queries)["q10"]
    )
    assert data.evaluation.candidates_from == {"test": f"{run}; 1 queries from BM25"}
    with pytest.raises(ValueError, match="^candidates_run=/no: must be an existing file"):
        tiny(candidates_run="/no")


def test_a_file_names_the_documents_in_place_of_their_titles(tmp_path):
    file, names = tmp_path / "identifiers.tsv", [f"d{n}\t{words(n % 29, 3)}\n" for n in range(30)]
    file.write_text("".join(["elsewhere\tharbour\n", *names[::-1]]))
    data, plain = tiny(identifiers=str(file)), tiny()
    assert data.documents["codes"][3] == names[3].split("\t")[1].split()
    given = data.documents["title_tokens"]
    assert given[7] == data.tokenizer(words(7, 3), add_special_tokens=False)["input_ids"]
    assert given[0] == given[29], "two documents may have one text"
    for name in ("id", "title", "text", "tokens"):
        assert data.documents[name][:] == plain.documents[name][:], "nothing else changes"
    assert list(data.training_sources) == [str(file)]
    for lines, message in (
        (names[1:], r"data\.identifiers=.*: must name every document, 1 have no line, .* 'd0'"),
        ([*names, "d3 river\n"], r"identifiers\.tsv:31: expected docid<TAB>text, got 'd3 river'"),
        ([*names, "d3\t \n"], r"identifiers\.tsv:31: expected docid<TAB>text"),
        ([*names, names[0]], r"identifiers\.tsv:31: names the document 'd0' a second time"),
    ):
        file.write_text("".join(lines))
        with pytest.raises(ValueError, match=message):
            tiny(identifiers=str(file)).documents  # noqa: B018


def test_files_give_documents_further_views(tmp_path):
    file, lines = tmp_path / "queries.jsonl", [{"document_id": "d3", "queries": [words(1, 3), " "]}]
    lines.append({"document_id": "d5", "queries": []})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data, plain = tiny(views={"query": str(file)}), tiny()
    given, (own,) = data.documents["query_tokens"][:], data.tokenizer([words(1, 3)]).input_ids
    assert given == [[own] if row == 3 else [] for row in range(30)]
    assert data.documents["tokens"][:] == plain.documents["tokens"][:], "nothing else changes"
    assert list(data.training_sources) == [str(file)]
    file.write_text(json.dumps({"document_id": "other", "queries": ["river"]}))
    with pytest.raises(ValueError, match=r"queries\.jsonl:1: document 'other' is not in the coll"):
        tiny(views={"query": str(file)}).documents  # noqa: B018


class Several(Tiny):
    """Every training query has three relevant documents, one of them its own where names allow."""

    def read(self):
        found = collection()
        pairs = [(f"q{n}", f"d{(n + step) % 30}") for n in range(10) for step in (0, 1, 2)]
        return replace(found, qrels=found.qrels | {"train": judge(*pairs)})


@pytest.mark.parametrize("passages", [None, {"words": 2, "stride": 1}])
@pytest.mark.parametrize("masked", [True, False])
def test_no_document_of_a_batch_that_is_relevant_to_a_query_is_its_negative(masked, passages):
    options = {"tokenizer_options": TOKENIZER, "mask_relevant": masked, "passages": passages}
    data = Several(test_split="test", **options)
    document_of = [int(name.strip("d")) for name in document_ids(data.documents)]
    epoch, false = data.epoch(0), 0
    for places in epoch.batches(8, shuffle=True):
        batch = collate([epoch[place] for place in places])
        for column, place in enumerate(places):
            query = int(data.training_tasks[0].tables.query_rows[epoch.numbers[place]])
            own = {query, query + 1, query + 2}
            for row, document in enumerate(document_of[n] for n in batch.document_index):
                negative = bool(batch.is_negative[row, column])
                positive = document_of[batch.document_index[column]]
                assert negative == (document not in (own if masked else {positive}))
                false += negative and document in own
    assert (false > 0) != masked


@pytest.mark.parametrize("split, prefix", [("train", "q"), (None, "d")])
def test_a_search_is_tuned_on_training_queries_or_documents(split, prefix, tmp_path):
    """Never on a test query, which it is judged by."""
    planned = []

    class Plans:
        tunes_search, tuning_split = True, None

        def tune_search(self, queries, depth, qrels):
            planned.extend(queries["id"][:])

        def retrieve(self, queries, k):
            return Ranking({query: {"d5": 1.0} for query in queries["id"][:]})

        def search_fidelity(self, queries, ranking, depth):
            return []

    data = tiny(train_split=split)
    evaluate_retrieval(Plans(), data, tmp_path, depth=2)
    assert planned and {name[0] for name in planned} == {prefix}
    assert not {*planned} & {*data.evaluation.test_queries("test")["id"][:]}


def test_texts_and_queries_are_cleaned():
    data = tiny(cleaning=["punctuation"])
    data.collection = replace(
        collection(), documents=collection().documents.map(lambda row: {"text": row["text"] + "!?"})
    )
    assert data.documents["tokens"][:] == tiny().documents["tokens"][:]


def test_pairs_that_a_system_does_not_cover_are_left_out_with_a_line(capsys):
    data = tiny(test_split="test")
    everything, _ = data.evaluation.test_pairs("test", 100)
    names, _ = data.evaluation.test_pairs("test", 100, covers=lambda row: row != 12)
    assert {*everything} - {*names} == {("q12", "d12")}
    assert "1 of 11 pairs of test are left out" in capsys.readouterr().out


def test_cut_texts_are_counted_once_where_a_split_trains_and_tests():
    data = tiny(test_split=["test", "train"], query_length=4, document_length=9)
    queries = [*data.queries("train")["tokens"], *data.queries("test")["tokens"]]
    cut = {"queries": sum(len(q) > 3 for q in queries)}  # the end token takes a place
    cut["documents"] = sum(len(tokens) > 8 for tokens in data.documents["tokens"])
    assert data.evaluation.count_cut_texts() == cut and 0 < cut["queries"] < len(queries)

import pytest
import torch
from datasets import Dataset

from analysis.gold import find_gold_tokens
from data_modules.almanac import almanac
from data_modules.collection import Collection
from data_modules.module import RetrievalDataModule
from gr_mvdr.tokenizers import EOS_ID
from tests.data_modules.tiny import judge

pytestmark = pytest.mark.usefixtures("cache")

WORDS = dict(backbone=None, path=None, unit="word", vocab_size=500, lowercase=True)
PIECES = WORDS | dict(unit="piece", vocab_size=8000)
TEXT = "Zirford, a city in Hochmark, lies on the Urkey."
SPANS = {"q0": ("Hochmark", ["a city", "Urkey"]), "q1": ("Urkey", []), "q2": ("no such", [])}


def spans(parts):
    return [{"start": TEXT.index(part), "end": TEXT.index(part) + len(part)} for part in parts]


def module(title="Zirford town", known=True, tokenizer=WORDS, **options):
    """One document and two questions about it, "Where is Zirford?" answered by Hochmark."""
    queries = {"id": ["q1", "q0"], "text": ["which river", "where is zirford"]}
    if known:
        queries["gold"] = [spans([SPANS[query][0]]) for query in queries["id"]]
        queries["evidence"] = [spans(SPANS[query][1]) for query in queries["id"]]
    documents = Dataset.from_dict({"id": ["d0", "d1"], "title": ["", title], "text": ["x", TEXT]})
    qrels = {"train": judge(("q0", "d1"), ("q1", "d1"))}
    found = Collection("tiny", documents, Dataset.from_dict(queries), qrels, {})

    class Tiny(RetrievalDataModule):
        def read(self):
            return found

    return Tiny(test_split="train", tokenizer_options=tokenizer, **options)


PAIRS = [("q0", "d1"), ("q1", "d1")]


def words_of(data, flags):
    tokens = data.tokenizer.convert_ids_to_tokens(data.documents[1]["tokens"])
    return [token for token, flag in zip([*tokens, "</s>"], flags.tolist(), strict=True) if flag]


def test_the_tokens_of_the_answer_and_of_what_is_given():
    data = module()
    found = find_gold_tokens(data, "train", PAIRS)
    answer, evidence = found["q0", "d1"]
    # zirford town zirford a city in hochmark lies on the urkey </s>
    assert answer.tolist() == [False] * 6 + [True] + [False] * 5 and answer.dtype == torch.bool
    assert words_of(data, evidence) == ["a", "city", "urkey"]
    answer, evidence = found["q1", "d1"]
    assert words_of(data, answer) == ["urkey"] and not evidence.any()


@pytest.mark.parametrize(
    ("title", "fields", "tokenizer"),
    [
        ("Zirford town", ("title", "text"), PIECES),
        ("", ("title", "text"), WORDS),
        ("Zirford (town) | of old", ("title", "text"), WORDS),
        ("Zirford (town) | of old", ("text", "title"), PIECES),
        ("Zirford town", ("text",), WORDS),
    ],
)
def test_spans_are_of_the_own_text_whatever_is_before_it(title, fields, tokenizer):
    data = module(title, tokenizer=tokenizer, text_fields=fields)
    answer, _ = find_gold_tokens(data, "train", PAIRS)["q0", "d1"]
    read = "".join(words_of(data, answer)).replace("▁", " ").strip()
    assert read == "hochmark" or (tokenizer is PIECES and "hochmark" in read)
    assert len(answer) == len(data.documents[1]["tokens"]) + 1


def test_a_document_read_by_its_title_alone_has_no_gold():
    assert find_gold_tokens(module(text_fields=("title",)), "train", PAIRS) == {}


def test_a_collection_without_answers_has_no_gold():
    assert find_gold_tokens(module(known=False), "train", PAIRS) == {}


def test_what_is_cut_off_is_no_gold():
    """The answer of q1 is the last of 11 words; 10 are kept."""
    found = find_gold_tokens(module(document_length=11), "train", PAIRS)
    assert list(found) == [("q0", "d1")] and len(found["q0", "d1"][0]) == 11
    assert found["q0", "d1"][1].tolist() == [False] * 3 + [True] * 2 + [False] * 6
    assert len(find_gold_tokens(module(document_length=12), "train", PAIRS)) == 2


@pytest.mark.parametrize("markers", [{}, {"document": "[D]"}])
def test_gold_of_the_almanac_fits_the_batches_of_its_test_pairs(markers):
    collection = almanac(n_documents=60, seed=2)

    class Almanac(RetrievalDataModule):
        def read(self):
            return collection

    options = PIECES | {"markers": markers}
    data = Almanac(test_split="test", tokenizer_options=options, document_length=40, shard="1/2")
    names, batches = data.test_pairs("test", limit=30, batch_size=4)
    found = find_gold_tokens(data, "test", names)
    texts = dict(zip(collection.documents["id"], collection.documents["text"], strict=True))
    queries = {row["id"]: row for row in collection.queries}
    rows = [zip(batch.document_ids, batch.document_mask, strict=True) for batch in batches]
    ids = [tokens[mask] for batch in rows for tokens, mask in batch]
    checked = 0
    for (query, document), tokens in zip(names, ids, strict=True):
        if (query, document) not in found:
            continue
        answer, evidence = found[query, document]
        assert len(answer) == len(evidence) == len(tokens) and tokens[-1] == EOS_ID
        assert not answer[-1] and not evidence[-1]
        span = queries[query]["gold"][0]
        text = texts[document][span["start"] : span["end"]].lower()
        read = data.tokenizer.decode(tokens[answer]).lower()
        if span["end"] < 100:  # what is cut off is not read
            assert text.replace(" ", "") in read.replace(" ", "")
            checked += 1
    assert checked > 6

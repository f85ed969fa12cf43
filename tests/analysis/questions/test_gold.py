from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from analysis.questions.analysis import Subject, Texts
from analysis.questions.gold import (
    DecodedIdentifiers,
    GoldAlignment,
    at_top,
    find_gold_tokens,
    occurrences,
)
from data_modules.collection import Collection
from data_modules.module import RetrievalDataModule
from gr_mvdr.decoding.beam_search import Hypotheses
from gr_mvdr.passages import Passages
from gr_mvdr.relevance import Explanation, PairAlignment
from gr_mvdr.template import TextTemplate
from gr_mvdr.tokenizers import EOS_ID
from tests.analysis.asking import aligned, asked
from tests.data_modules.tiny import judge

WORDS = dict(backbone=None, path=None, unit="word", vocab_size=500, lowercase=True)
PIECES = WORDS | dict(unit="piece", vocab_size=8000)
TEXT = "Zirford, a city in Hochmark, lies on the Urkey."
SPANS = {"q0": ("Hochmark", ["a city", "Urkey"]), "q1": ("Urkey", [])}


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
        ("Zirford (town) | of old", ("text", "title"), PIECES),
        ("", ("title", "text"), WORDS),
    ],
)
def test_spans_are_of_the_own_text_whatever_is_before_it(title, fields, tokenizer):
    data = module(title, tokenizer=tokenizer, text_fields=fields)
    answer, _ = find_gold_tokens(data, "train", PAIRS)["q0", "d1"]
    read = "".join(words_of(data, answer)).replace("▁", " ").strip()
    assert read == "hochmark" or (tokenizer is PIECES and "hochmark" in read)
    assert len(answer) == len(data.documents[1]["tokens"]) + 1


def test_without_answers_or_the_text_itself_there_is_no_gold():
    titles, cleaned = module(text_fields=("title",)), module(cleaning=["punctuation"])
    for data in (titles, cleaned, module(known=False)):
        assert find_gold_tokens(data, "train", PAIRS) == {}


def test_what_is_cut_off_is_no_gold():
    """The answer of q1 is the last of 11 words; 10 are kept."""
    found = find_gold_tokens(module(document_length=11), "train", PAIRS)
    assert list(found) == [("q0", "d1")] and len(found["q0", "d1"][0]) == 11
    assert found["q0", "d1"][1].tolist() == [False] * 3 + [True] * 2 + [False] * 6
    assert len(find_gold_tokens(module(document_length=12), "train", PAIRS)) == 2


VOCABULARY, END = 30, 1


def flags(*places, size=6):
    found = torch.zeros(size, dtype=torch.bool)
    found[list(places)] = True
    return found


def test_the_strongest_and_a_shared_place_for_equal_ones():
    strengths = torch.tensor([0.9, 0.3, 0.3, 0.3, 0.1, 5.0])
    chosen = at_top(strengths, flags(0, 1, 2, 3, 4), (1, 2, 3, 5, 9))
    third = 1 / 3
    expected = [[1, 0, 0, 0, 0, 0], [1, third, third, third, 0, 0],
                [1, 2 * third, 2 * third, 2 * third, 0, 0],
                [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]]  # fmt: skip
    torch.testing.assert_close(chosen, torch.tensor(expected))


def measured(layers, gold, paradigm="generative", size=99):
    """The measurement of batches of a size."""
    count = len(layers[0].score)
    names = [(f"q{number}", f"d{number}") for number in range(count)]
    description = SimpleNamespace(paradigm=paradigm, title="a system on fruit")
    store = SimpleNamespace(description=description, pairs=names)
    kinds = SimpleNamespace(special=torch.arange(VOCABULARY) < 3)
    texts = Texts(torch.ones(VOCABULARY), kinds, None, gold)
    measurement = GoldAlignment(Subject(store=store, texts=texts))
    for first in range(0, count, size):
        part = slice(first, first + size)
        tensors = [{n: v for n, v in vars(p).items() if v is not None} for p in layers]
        cut = [PairAlignment(**{n: v[part] for n, v in own.items()}) for own in tensors]
        measurement.update(Explanation(cut), first)
    return measurement.finish()


def rows_of(result, **wanted):
    table = result.tables["gold_alignment"]
    return [row for row in table if all(row[name] == value for name, value in wanted.items())]


def cross_attention(*strengths):
    """Pairs of as many word tokens and an end token each; a word's attention to the only word."""
    lengths = [len(values) for values in strengths]
    alignment = torch.zeros(len(strengths), 1, max(lengths) + 1, 2)
    ids = torch.zeros(len(strengths), max(lengths) + 1, dtype=torch.int64)
    for row, values in enumerate(strengths):
        words = torch.tensor([*values, 0.95])
        alignment[row, 0, : len(words)] = torch.stack([words, 1 - words], -1)
        ids[row, : len(words)] = torch.tensor([5] * len(values) + [END])
    query = torch.tensor([[8, END]] * len(strengths))
    return aligned(alignment, ids, query, masks=(ids > 0, query > 0))


def test_a_pair_by_hand():
    """Only the second word reaches 0.9 (the end token, at 0.95, is no candidate)."""
    gold = {("q0", "d0"): torch.stack([flags(1, size=4), flags(2, size=4)])}
    result = measured([cross_attention([0.0, 0.92, 0.0])], gold)
    own = dict(alignment="own", direction="document_to_query", selection="threshold", at=0.9)
    (own,) = rows_of(result, **own)
    assert own["precision"] == own["recall"] == 1
    assert own["aer"] == pytest.approx(0)
    (random,) = rows_of(result, alignment="random", at=1)
    assert random["possible_precision"] == pytest.approx(2 / 3), "the end token is no candidate"
    key = "analysis/gold/document_to_query/"
    assert result.metrics[key + "precision@1"] == 1
    assert result.metrics[key + "random_precision"] == pytest.approx(1 / 3)
    # Of three tokens that count, the answer and the evidence are gold.
    assert result.metrics[key + "align_all_aer"] == pytest.approx(1 - (1 + 2) / (3 + 1))
    assert key + "aer" not in result.metrics, "no other half to choose the threshold by"


def test_the_threshold_is_chosen_on_the_other_half():
    """Only a pair's first word is gold: 0.5 is best for the even pairs, 0.2 for the odd ones."""
    pairs = cross_attention([0.6, 0.3], [0.3, 0.1, 0.1], [0.6, 0.3])
    gold = {(f"q{n}", f"d{n}"): torch.stack([flags(0, size=m), flags(size=m)])
            for n, m in enumerate((3, 4, 3))}  # fmt: skip
    metrics = measured([pairs], gold, size=1).metrics
    key = "analysis/gold/document_to_query/"
    # By 0.2 an even pair aligns a word too many, by 0.5 the odd one aligns nothing.
    assert metrics[key + "aer"] == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)


def test_every_occurrence_of_an_identifier_is_covered():
    document = torch.tensor([5, 6, 5, 6, 7, 5, 1])
    cases = [([5, 6], (0, 1, 2, 3)), ([6, 6], ()), ([5, 6, 5], (0, 1, 2)), ([5] * 8, ())]
    for identifier, places in cases:
        assert occurrences(document, identifier).tolist() == flags(*places, size=7).tolist()


class Decoder:
    """A generative system that ends its search with given sequences of each query."""

    paradigm, template, passages = "generative", TextTemplate(), Passages()

    def __init__(self, sequences):
        self.sequences = sequences  # tuple of query tokens → sequences, the best first
        self.names = object()

    def eval(self):
        return self

    def search(self, queries, texts):
        found = [(n, s) for n, q in enumerate(queries) for s in self.sequences[tuple(q)]]
        size = max(len(sequence) for _, sequence in found)
        tokens = [[*sequence, *[-1] * (size - len(sequence))] for _, sequence in found]
        final = Hypotheses(
            torch.tensor([number for number, _ in found]),
            torch.tensor(tokens),
            -torch.arange(len(found)).float(),
        )
        return SimpleNamespace(final=final)


def test_decoded_identifiers_by_hand():
    """q0 decodes its answer; one of q1's identifiers is no text, the other has three words."""
    data = module()
    answer = [*data.tokenizer.convert_tokens_to_ids(["hochmark"]), EOS_ID]
    phrase = data.tokenizer.convert_tokens_to_ids(["on", "the", "urkey"])
    q1, q0 = (tuple(tokens) for tokens in data.evaluation.test_queries("train")["tokens"])
    decoder = Decoder({q0: [answer], q1: [[400, 401, EOS_ID], phrase]})
    metrics = asked(DecodedIdentifiers, decoder, data, 100).metrics
    expected = dict(found=1, precision=(1 + 1 / 3) / 2, recall=1, random_precision=1 / 11)
    for name, value in expected.items():
        assert metrics[f"analysis/gold/decoded/{name}"] == pytest.approx(value), name
    nowhere = Decoder({key: [[400, 401, EOS_ID]] for key in (q0, q1)})
    assert not asked(DecodedIdentifiers, nowhere, data, 100).metrics

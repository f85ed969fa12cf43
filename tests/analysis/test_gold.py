from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from analysis.analysis import GoldTokens, Subject, Texts
from analysis.gold import (
    DEPTHS,
    THRESHOLDS,
    DecodedIdentifiers,
    GoldAlignment,
    at_thresholds,
    at_top,
    find_gold_tokens,
    measure,
    occurrences,
    strength,
)
from data_modules.almanac import almanac
from data_modules.collection import Collection
from data_modules.module import RetrievalDataModule
from data_modules.sources import AlmanacDataModule
from gr_mvdr.decoding.beam_search import Hypotheses
from gr_mvdr.relevance import Explanation, PairAlignment
from gr_mvdr.template import TextTemplate
from gr_mvdr.tokenizers import EOS_ID
from tests.analysis.asking import asked
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


def test_a_document_read_by_its_title_alone_and_a_collection_without_answers_have_no_gold():
    for data in (module(text_fields=("title",)), module(known=False)):
        assert find_gold_tokens(data, "train", PAIRS) == {}


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


VOCABULARY, END = 30, 1


def flags(*places, size=6):
    found = torch.zeros(size, dtype=torch.bool)
    found[list(places)] = True
    return found


def measured_once(aligned, answer, evidence):
    values = measure(aligned.float()[None], answer, evidence)
    return {name: value.item() for name, value in values.items()}


def test_a_tokens_strength_is_its_largest_alignment_with_a_token_that_counts():
    alignment = torch.tensor([[0.1, 0.7, 0.9], [0.2, 0.0, 0.8]])
    assert strength(alignment, flags(0, 1, size=3)).tolist() == pytest.approx([0.7, 0.2])


def test_precision_recall_and_error_rate_by_hand():
    """A = {0, 1, 2}, S = {1, 5}, evidence {2}: A∩S = {1}, A∩P = {1, 2}."""
    found = measured_once(flags(0, 1, 2), flags(1, 5), flags(2))
    expected = [1 / 3, 1 / 2, 2 / 3, 2 / 3, 1 - (1 + 2) / (3 + 2)]
    assert list(found.values()) == pytest.approx(expected)
    nothing = measured_once(torch.zeros(6), flags(1), flags())
    assert nothing["precision"] != nothing["precision"]
    assert nothing["recall"] == 0 and nothing["aer"] == 1


def test_the_gold_itself_has_no_error_nor_has_anything_between_sure_and_possible():
    answer, evidence = flags(1, 5), flags(2, 3)
    for aligned in (answer, answer | flags(3), answer | evidence):
        found = measured_once(aligned, answer, evidence)
        assert found["aer"] == pytest.approx(0, abs=1e-6)
        assert found["recall"] == found["possible_precision"] == 1
    beyond = measured_once(answer | flags(0), answer, evidence)
    missing = measured_once(flags(1), answer, evidence)
    assert beyond["aer"] > 0.1 and missing["aer"] > 0.1


def test_thresholds_take_in_what_reaches_them():
    strengths = torch.tensor([0.1, 0.5, 0.4, 0.9])
    chosen = at_thresholds(strengths, torch.tensor([True, True, True, False]), (0.1, 0.4, 0.6))
    assert chosen.tolist() == [[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]


def test_the_strongest_and_a_shared_place_for_equal_ones():
    strengths = torch.tensor([0.9, 0.3, 0.3, 0.3, 0.1, 5.0])
    chosen = at_top(strengths, flags(0, 1, 2, 3, 4), (1, 2, 3, 5, 9))
    third = 1 / 3
    expected = [[1, 0, 0, 0, 0, 0], [1, third, third, third, 0, 0],
                [1, 2 * third, 2 * third, 2 * third, 0, 0],
                [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]]  # fmt: skip
    torch.testing.assert_close(chosen, torch.tensor(expected))


def test_constant_strengths_are_a_random_choice():
    """Expected precision |S|/m at every k, recall k/m."""
    chosen = at_top(torch.zeros(5), flags(0, 1, 2, 3, 4, size=5), (1, 2, 4))
    values = measure(chosen, flags(0, 3, size=5), flags(1, size=5))
    torch.testing.assert_close(values["precision"], torch.full((3,), 2 / 5))
    torch.testing.assert_close(values["possible_precision"], torch.full((3,), 3 / 5))
    for recall in ("recall", "possible_recall"):
        torch.testing.assert_close(values[recall], torch.tensor([1, 2, 4]) / 5)


def texts(gold):
    special = torch.zeros(VOCABULARY, dtype=torch.bool)
    special[:3] = True
    return Texts(torch.ones(VOCABULARY), SimpleNamespace(special=special), None, gold)


def store(pairs, paradigm="multi_vector"):
    description = SimpleNamespace(paradigm=paradigm, title="a system on fruit")
    return SimpleNamespace(description=description, pairs=pairs)


def names(n):
    return [(f"q{number}", f"d{number}") for number in range(n)]


def golden(pairs, seed=1):
    """Every third pair has no gold; the others some random answer and evidence."""
    generator = torch.Generator().manual_seed(seed)
    gold = {}
    for number, length in enumerate(pairs.document_mask.sum(1).tolist()):
        answer = torch.rand(length, generator=generator) < 0.4
        answer[0] = True
        evidence = torch.rand(length, generator=generator) < 0.3
        if number % 3 != 2:
            gold[f"q{number}", f"d{number}"] = GoldTokens(answer, evidence)
    return gold


def measured(pairs, gold, paradigm="multi_vector", size=None):
    """The measurement of one batch, or of batches of a size."""
    layers = pairs if isinstance(pairs, list) else [pairs]
    count = len(layers[0].score)
    measurement = GoldAlignment(Subject(store=store(names(count), paradigm), texts=texts(gold)))
    for first in range(0, count, size or count):
        part = slice(first, first + (size or count))
        cut = [PairAlignment(**{n: v[part] for n, v in vars(p).items()}) for p in layers]
        measurement.update(Explanation(cut), first)
    return measurement.finish()


def rows_of(result, **wanted):
    table = result.tables["gold_alignment"]
    return [row for row in table if all(row[name] == value for name, value in wanted.items())]


def aligned_pair():
    """Document 5 6 7 </s>, query 8 9 </s>; the end token of each attracts the most."""
    alignment = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    return PairAlignment(
        similarity=alignment[None, None] * 3,
        alignment=alignment[None, None],
        normaliser=torch.ones(1),
        relevance=torch.ones(1),
        score=torch.ones(1),
        document_ids=torch.tensor([[5, 6, 7, END]]),
        document_mask=torch.ones(1, 4, dtype=torch.bool),
        query_ids=torch.tensor([[8, 9, END]]),
        query_mask=torch.ones(1, 3, dtype=torch.bool),
    )


def test_a_pair_by_hand():
    """Only the second token is chosen by a word of the query; the first one is no answer."""
    gold = {("q0", "d0"): GoldTokens(flags(1, size=4), flags(2, size=4))}
    result = measured(aligned_pair(), gold)
    (own,) = rows_of(result, alignment="own", selection="threshold", at=0.9)
    assert own["precision"] == own["recall"] == 1
    assert own["aer"] == pytest.approx(0)
    (random,) = rows_of(result, alignment="random", at=1)
    assert random["precision"] == pytest.approx(1 / 3), "the end token is no candidate"
    assert random["possible_precision"] == pytest.approx(2 / 3)
    key = "analysis/gold/query_to_document/"
    assert result.metrics[key + "precision@1"] == 1
    assert result.metrics[key + "random_precision"] == pytest.approx(1 / 3)
    assert result.metrics[key + "recall@5"] == 1
    assert result.metrics[key + "random_possible_precision"] == pytest.approx(2 / 3)
    assert result.metrics["analysis/gold/document_to_query/possible_precision@1"] == 1
    # Of three tokens that count, the answer and the evidence are gold.
    assert result.metrics[key + "align_all_aer"] == pytest.approx(1 - (1 + 2) / (3 + 1))
    assert key + "aer" not in result.metrics, "no other half to choose the threshold by"


def cross_attention(*strengths):
    """Pairs of as many word tokens and an end token each; a word's attention to the only word."""
    lengths = [len(values) for values in strengths]
    alignment = torch.zeros(len(strengths), 1, max(lengths) + 1, 2)
    ids = torch.zeros(len(strengths), max(lengths) + 1, dtype=torch.int64)
    for row, values in enumerate(strengths):
        words = torch.tensor([*values, 0.95])
        alignment[row, 0, : len(words)] = torch.stack([words, 1 - words], -1)
        ids[row, : len(words)] = torch.tensor([5] * len(values) + [END])
    ones = torch.ones(len(strengths))
    query = torch.tensor([[8, END]] * len(strengths))
    texts = dict(document_ids=ids, document_mask=ids > 0, query_ids=query, query_mask=query > 0)
    return PairAlignment(alignment, alignment, ones, ones, ones, **texts)


def test_the_threshold_is_chosen_on_the_other_half():
    """Only a pair's first word is gold: 0.5 is best for the even pairs, 0.2 for the odd ones."""
    pairs = cross_attention([0.6, 0.3], [0.3, 0.1, 0.1], [0.6, 0.3])
    gold = {pair: GoldTokens(flags(0, size=n), flags(size=n)) for pair, n in zip(
        names(3), (3, 4, 3), strict=True
    )}  # fmt: skip
    metrics = measured(pairs, gold, "generative", size=1).metrics
    key = "analysis/gold/document_to_query/"
    # By 0.2 an even pair aligns a word too many, by 0.5 the odd one aligns nothing.
    assert metrics[key + "aer"] == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)
    alike = measured(cross_attention([0.6, 0.3], [0.6, 0.3, 0.1], [0.6, 0.3]), gold, "generative")
    assert alike.metrics[key + "aer"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("paradigm", ["multi_vector", "generative", "lexical"])
def test_batches_and_padding_change_nothing(make_pairs, paradigm):
    heads = 2 if paradigm == "generative" else 1
    pairs = make_pairs(9, heads=heads, paradigm=paradigm)
    gold = golden(pairs)
    layers = [pairs] * (2 if paradigm == "generative" else 1)
    whole, parts = measured(layers, gold, paradigm), measured(layers, gold, paradigm, size=2)
    one, other = (result.tables["gold_alignment"] for result in (whole, parts))
    assert [row.keys() for row in one] == [row.keys() for row in other]
    assert whole.metrics == pytest.approx(parts.metrics, rel=1e-5, abs=1e-6)
    assert len(whole.metrics) == 14


def test_only_pairs_with_gold_of_the_documents_own_tokens_count(make_pairs):
    pairs = make_pairs(6)
    gold = golden(pairs)
    ((figure, _),) = measured(pairs, gold).figures
    assert "4 gold pairs" in figure.get_suptitle()
    docid = {pair: GoldTokens(g.answer[:-1], g.evidence[:-1]) for pair, g in gold.items()}
    for missing in ({}, docid):
        result = measured(pairs, missing)
        assert not (result.metrics or result.tables or result.figures)


def test_metrics_are_those_of_the_last_layer_and_each_layer_has_a_curve(make_pairs):
    first, last = (make_pairs(6, heads=2, paradigm="generative", seed=0) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    weights = last.alignment * torch.rand(last.alignment.shape, generator=generator)
    last.alignment = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)
    result = measured([first, last], golden(first), "generative")
    alone = measured([last], golden(first), "generative")
    assert result.metrics == pytest.approx(alone.metrics)
    ((figure, _),) = result.figures
    labels = [[line.get_label() for line in axes.lines] for axes in figure.axes]
    assert labels == [["layer 1", "layer 2", "random order"]] * 4
    assert len(figure.axes[0].lines[0].get_xdata()) == len(DEPTHS)
    count = len(DEPTHS) + len(THRESHOLDS)
    assert len(rows_of(result, alignment="own")) == 2 * 2 * count


@pytest.fixture
def data():
    options = dict(n_documents=60, train_questions=3, collection_seed=2, test_split="test")
    return AlmanacDataModule(**options, tokenizer_options=WORDS, document_length=200)


DOCUMENT = torch.tensor([5, 6, 5, 6, 7, 5, 1])


@pytest.mark.parametrize(
    ("identifier", "places"),
    [
        ([5, 6], (0, 1, 2, 3)),
        ([6, 5], (1, 2)),
        ([5], (0, 2, 5)),
        ([5, 6, 5, 6], (0, 1, 2, 3)),
        ([6, 6], ()),
        ([5, 6, 5], (0, 1, 2)),
        ([], ()),
        ([5] * 8, ()),
        (DOCUMENT.tolist(), range(7)),
    ],
)
def test_every_occurrence_of_an_identifier_is_covered(identifier, places):
    assert occurrences(DOCUMENT, identifier).tolist() == flags(*places, size=7).tolist()


class Decoder:
    """A generative system that ends its search with given sequences of each query."""

    paradigm, template = "generative", TextTemplate()

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


def gold_pairs(data, limit=100):
    """(query tokens, document tokens, answer, evidence) of every test pair."""
    names, _ = data.test_pairs("test", limit)
    queries = {row["id"]: tuple(row["tokens"]) for row in data.test_queries("test")}
    texts = {row["id"]: torch.tensor([*row["tokens"], EOS_ID]) for row in data.documents}
    gold = find_gold_tokens(data, "test", names)
    return [(queries[q], texts[d], *sides) for (q, d), sides in gold.items()]


def short(metrics):
    return {key.removeprefix("analysis/gold/decoded/"): value for key, value in metrics.items()}


def test_a_system_that_generates_the_answer_is_perfect(data):
    pairs = gold_pairs(data)
    sequences = {query: [[*text[answer].tolist(), EOS_ID]] for query, text, answer, _ in pairs}
    assert len(sequences) == len(pairs) > 20
    metrics = short(asked(DecodedIdentifiers, Decoder(sequences), data, 100).metrics)
    assert metrics["found"] == metrics["best_found"] == metrics["recall"] == 1
    # A name may stand in the text once more, where it answers nothing.
    assert 0.6 < metrics["precision"] <= metrics["possible_precision"]
    expected = []
    for _, text, answer, evidence in pairs:
        covered = occurrences(text, text[answer].tolist())
        expected.append(measured_once(covered, answer, evidence)["precision"])
    assert metrics["precision"] == pytest.approx(sum(expected) / len(expected))
    chance = [answer.sum().item() / (len(answer) - 1) for _, _, answer, _ in pairs]
    assert metrics["random_precision"] == pytest.approx(sum(chance) / len(chance))


def test_the_best_identifier_and_all_that_occur(data):
    """The best of the first half is no text of the document; a worse one is its beginning."""
    pairs, sequences = gold_pairs(data), {}
    for number, (query, text, *_) in enumerate(pairs):
        beginning, elsewhere = text[:3].tolist(), [text[0].item()] * 9
        half = number < len(pairs) / 2
        sequences[query] = [elsewhere, beginning] if half else [beginning, elsewhere]
    metrics = short(asked(DecodedIdentifiers, Decoder(sequences), data, 100).metrics)
    assert metrics["found"] == 1
    assert metrics["best_found"] == pytest.approx(len(pairs) // 2 / len(pairs))


def test_docids_that_are_not_text_and_other_systems_say_nothing(data, monkeypatch):
    sequences = {query: [[100_001, 100_002, EOS_ID]] for query, *_ in gold_pairs(data)}
    assert not asked(DecodedIdentifiers, Decoder(sequences), data, 100).metrics
    model = Decoder({query: [text[:3].tolist()] for query, text, *_ in gold_pairs(data)})
    assert asked(DecodedIdentifiers, model, data, 5).metrics
    with monkeypatch.context() as patch:
        patch.setattr(model, "names", None)
        assert not asked(DecodedIdentifiers, model, data, 5).metrics
    monkeypatch.setattr(data, "text_fields", ["title"])
    assert not asked(DecodedIdentifiers, model, data, 5).metrics

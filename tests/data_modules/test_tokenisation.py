import random
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import T5Config

from data_modules.tokenisation import (
    add_tokens,
    choose_tokenizer,
    cut_spans,
    encode_special_tokens,
    train_tokenizer,
)
from gr_mvdr.tokenizers import UNK_ID, load_tokenizer

pytestmark = pytest.mark.usefixtures("cache")

T5_VOCABULARY = Path(__file__).parents[2].parent / "shared" / "data" / "t5-vocab" / "tokenizer.json"
WORDS = "the cat sat on a mat dog's x-ray 3.14 naïve Über (brackets) „quote“ 漢字 e.g.".split()


def sentences(n=150, seed=0):
    """Random words with odd spacing, at the ends as well."""
    rng = random.Random(seed)
    spaces = [" ", " ", " ", "  ", "\n", " \t ", " "]
    return [
        rng.choice(["", " ", "\n"])
        + "".join(rng.choice(WORDS) + rng.choice(spaces) for _ in range(rng.randint(1, 9)))
        for _ in range(n)
    ]


def table(texts):
    return Dataset.from_dict({"id": [str(n) for n in range(len(texts))], "text": texts})


def tokenizers():
    yield "piece", lambda: train_tokenizer(sentences(), 120)
    yield "cased", lambda: train_tokenizer(sentences(), 120, lowercase=False)
    if T5_VOCABULARY.is_file():
        yield "t5", lambda: load_tokenizer(T5_VOCABULARY)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in tokenizers()])
def test_spans_of_words_cut_from_tokens_decode_to_the_words(make):
    tokenizer = make()
    rng = random.Random(1)
    for row in add_tokens(table(sentences(seed=2)), tokenizer):
        words, starts = row["text"].split(), row["word_starts"]
        assert len(starts) == len(words) and starts == sorted(starts)
        assert starts[0] == 0, "no token is left out"
        first = rng.randrange(len(words))
        last = rng.randint(first + 1, len(words))
        whole = tokenizer(" ".join(words[first:last]), add_special_tokens=False)["input_ids"]
        assert cut_spans(row, [first], last - first) == [whole]


def choose(**options):
    defaults = dict(backbone=None, path=None, unit="piece", vocab_size=120, lowercase=True)
    documents, queries = table(sentences(100)), table(sentences(20, seed=5))
    return choose_tokenizer(documents, queries, "none", **{**defaults, **options})


def test_a_given_vocabulary_fits_into_the_embedding_table(tmp_path):
    path, size = tmp_path / "tokenizer.json", len(choose())
    choose().backend_tokenizer.save(str(path))
    assert len(choose(path=str(path), vocab_size=size)) == size
    with pytest.raises(ValueError, match=rf"vocab_size={size - 1}: must be ≥ {size}, the"):
        choose(path=str(path), vocab_size=size - 1)


SPECIAL_TOKENS = {"body": "|| body", "title": "|| title", "title_end": "@@"}


def test_the_expansion_is_a_token_of_the_pretrained_backbone(tmp_path):
    (tokenizer := choose()).save_pretrained(tmp_path)
    T5Config(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"tokenizer\.expansion=\[MASK\]: must be a token of"):
        choose(backbone=str(tmp_path), expansion="[MASK]")


def test_a_pretrained_table_has_a_row_for_each_token_but_added_markers(tmp_path):
    (tokenizer := choose()).save_pretrained(tmp_path)
    T5Config(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    markers = {"query": "[Q]", "document": None}
    assert len(choose(backbone=str(tmp_path), markers=markers)) == len(tokenizer) + 1
    tokenizer.add_tokens(["w0w0", "w1w1"])
    tokenizer.save_pretrained(tmp_path)
    rule = f"its tokeniser has {(size := len(tokenizer))} tokens, must have at most {size - 2}, the"
    for key, options in (("backbone.name", {}), ("tokenizer.path", {"path": str(tmp_path)})):
        with pytest.raises(ValueError, match=rf"^{key}={tmp_path}: {rule}"):
            choose(backbone=str(tmp_path), **options)


def test_a_trained_tokenizer_knows_the_characters_of_the_special_tokens():
    tokenizer = choose(special_tokens=SPECIAL_TOKENS)
    found = encode_special_tokens(SPECIAL_TOKENS, tokenizer)
    assert list(found) == list(SPECIAL_TOKENS) and len({tuple(ids) for ids in found.values()}) == 3
    for name, text in SPECIAL_TOKENS.items():
        assert tokenizer.decode(found[name]) == text
    with pytest.raises(ValueError, match=r"tokenizer.special_tokens.body=\|\| body: unknown"):
        encode_special_tokens(SPECIAL_TOKENS, choose())
    # Without special tokens the tokeniser stays what it was.
    assert (
        choose(special_tokens={}).backend_tokenizer.to_str() == choose().backend_tokenizer.to_str()
    )


def test_special_tokens_in_titles_texts_and_queries_are_text_and_in_special_tokens_are_special():
    rows = table(["a </s> b <pad>", "<extra_id_0>", "c"])
    rows = rows.add_column("title", ["</s>", "one <pad> two", ""])
    tokenizer = train_tokenizer([*rows["text"], *rows["title"], "|| body"], 80)
    for row in add_tokens(rows, tokenizer):
        assert not {0, 1, 3} & {*row["tokens"], *row["title_tokens"]}
        assert len(row["word_starts"]) == len(row["text"].split())
    special_tokens = {"body": "|| <extra_id_0>", "end": "</s>"}
    found = encode_special_tokens(special_tokens, tokenizer)
    assert found["body"][-1] == 3 and found["end"] == [1]
    assert not {1, 3} & set(tokenizer("</s> <extra_id_0>", add_special_tokens=False)["input_ids"])


# A tokeniser trained on a collection


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_training_gives_the_same_pieces_every_time():
    first, second = (train_tokenizer(iter(sentences()), 120) for _ in range(2))
    assert 20 < len(first) <= 120
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_a_word_counts_with_its_first_letters_and_every_letter_is_known(capsys):
    rng = random.Random(0)
    word = "".join(rng.choices("acgt", k=300_000)) + "z漢"
    trained = train_tokenizer([*sentences(), f"Kalo, {word}. mi"], 200)  # whole: minutes
    said = "training sees only the first 256 letters of longer words (1 in these texts)\n"
    assert capsys.readouterr().out == f"tokenizer: {said}"
    pieces = ids(trained, word)
    assert UNK_ID not in pieces and trained.decode(pieces).replace(" ", "") == word
    cut = train_tokenizer([*sentences(), f"Kalo, {word[:256]}. mi a c g t z 漢"], 200)
    assert cut.backend_tokenizer.to_str() == trained.backend_tokenizer.to_str()
    # Punctuation ends a word, whatever its script.
    capsys.readouterr()
    train_tokenizer([*sentences(), "漢字、" * 200], 200)
    assert not capsys.readouterr().out

import random
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data_modules.tokenisation import train_tokenizer
from gr_mvdr.analyzer import split_words
from gr_mvdr.tokenizers import (
    EOS_ID,
    SPECIAL_TOKENS,
    UNK_ID,
    WordTokenizer,
    build_word_tokenizer,
    load_tokenizer,
)
from tests.data_modules.test_tokenisation import ids, sentences

T5_VOCABULARY = Path(__file__).parents[2].parent / "shared" / "data" / "t5-vocab" / "tokenizer.json"


def test_a_missing_or_foreign_vocabulary_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer.path=.*none.json: no such file"):
        load_tokenizer(tmp_path / "none.json")
    model = train_tokenizer(sentences(), 120).backend_tokenizer.to_str()
    (tmp_path / "other.json").write_text(model.replace('"<unk>"', '"<mask>"'))
    with pytest.raises(ValueError, match="must have T5's ids 0, 1, 2"):
        load_tokenizer(tmp_path / "other.json")


def test_padding_may_be_the_end_token_but_an_end_is_needed(tmp_path):
    model = train_tokenizer(sentences(), 120).backend_tokenizer
    for given in ({"eos_token": "</s>"}, {"pad_token": "<pad>"}):
        folder = tmp_path / next(iter(given))
        PreTrainedTokenizerFast(tokenizer_object=model, **given).save_pretrained(folder)
    assert load_tokenizer(tmp_path / "eos_token").pad_token == "</s>"
    with pytest.raises(ValueError, match=r"^backbone.name=.*: has no token that ends a text"):
        load_tokenizer(tmp_path / "pad_token", key="backbone.name")


@pytest.mark.skipif(not T5_VOCABULARY.is_file(), reason="T5's vocabulary is not here")
def test_a_folder_with_sentencepieces_file_alone_is_read(tmp_path):
    shutil.copy(T5_VOCABULARY.with_name("spiece.model"), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    both, text = (load_tokenizer(tmp_path), load_tokenizer(T5_VOCABULARY)), "An unaffable </s> cat"
    assert ids(both[0], text) == ids(both[1], text)


ODD = "The CAT's naïve, x_1 — 42½ km² ÉTÉ…Über-straße हिन्दी ΟΔΟΣ ٣ 漢字\tⅣ á"


def test_word_tokens_are_bm25s_words():
    generator = random.Random(0)
    alphabet = ODD + "abc  ,.'-_09"
    samples = ["".join(generator.choices(alphabet, k=30)) for _ in range(300)]
    tokenizer = build_word_tokenizer([ODD, *samples])
    for text in (ODD, *samples):
        pieces = tokenizer.convert_ids_to_tokens(ids(tokenizer, text))
        assert pieces == split_words(text)
    assert ids(build_word_tokenizer(["one two"]), "two three ONE") == [5, UNK_ID, 4]


@pytest.mark.skipif(not T5_VOCABULARY.is_file(), reason="T5's vocabulary is not here")
def test_t5s_vocabulary_gives_t5s_ids():
    tokenizer = load_tokenizer(T5_VOCABULARY)
    text = "translate English to German: The house is wonderful."
    expected = [13959, 1566, 12, 2968, 10, 37, 629, 19, 1627, 5]
    assert ids(tokenizer, text) == expected
    assert tokenizer(text)["input_ids"] == [*expected, EOS_ID]
    assert tokenizer.convert_tokens_to_ids("<extra_id_0>") == 32099


# What a text must not become


SPECIAL_TEXTS = [
    "a </s> b",
    "<pad>",
    "end</s>",
    "x<extra_id_0>y <extra_id_7> <unk>",
    "<<pad> </s></s>",
    "＜pad＞ and <PAD>",
]


def kinds():
    seen = [*sentences(), "</s> <pad> pad > / unk extra_id_0 a b x y"]
    yield "trained", lambda: train_tokenizer(iter(seen), 120)
    yield "cased", lambda: train_tokenizer(iter(sentences()), 120, lowercase=False)
    yield "words", lambda: build_word_tokenizer(seen)
    if T5_VOCABULARY.is_file():
        yield "t5", lambda: load_tokenizer(T5_VOCABULARY)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in kinds()])
def test_special_tokens_within_a_text_are_text(make, tmp_path):
    tokenizer = make()
    special = set(tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS)) - {UNK_ID}
    for text in SPECIAL_TEXTS:
        pieces = ids(tokenizer, text)
        assert pieces and not special & set(pieces), text
        assert not [
            t for t in tokenizer.convert_ids_to_tokens(pieces) if t.startswith("<extra_id_")
        ]
        assert tokenizer([text], add_special_tokens=False)["input_ids"] == [pieces]
    tokenizer.save_pretrained(tmp_path / "run")
    again = load_tokenizer(tmp_path / "run")
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    others = [again]
    if not isinstance(again, WordTokenizer):  # whose analyzer is in no other library
        # As an exported folder is opened by others, beside the T5's own configuration.
        (tmp_path / "run" / "config.json").write_text('{"model_type": "t5"}')
        others.append(AutoTokenizer.from_pretrained(tmp_path / "run"))
    for other in others:
        assert all(ids(other, text) == ids(tokenizer, text) for text in SPECIAL_TEXTS)

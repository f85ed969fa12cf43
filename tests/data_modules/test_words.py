import random

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from data_modules.words import WordReader, find_word_starts, reads_words_alone
from gr_mvdr.tokenizers import build_word_tokenizer, load_tokenizer, train_tokenizer
from tests.data_modules.test_tokenisation import T5_VOCABULARY, sentences

# Spaces of all kinds, controls, marks that combine, join or precede, what normalisers map to spaces
# and to several characters, special tokens, and the characters that stand for spaces in pieces.
ODD = [
    *" \n\t\r\x1c\x1f\x85\xa0\u2009\u2028",
    *"\u3000\u200b\u200d\u0301\u0600\u0e33\x00\ufeff\xad´ﬁ½ΣςİÅ▁Ġ漢",
]
WORDS = "the cat's 3.14 naïve (x-ray) „Q“ </s> <pad> <unk> <extra_id_0> | , 're e.g. don't".split()


def texts(count, seed):
    rng = random.Random(seed)
    kinds = ODD, WORDS, "abc", " "
    return [
        "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(0, 12)))
        for _ in range(count)
    ]


def learned(model, trainer, pre_tokenizer, normalizer=None):
    """A tokeniser as the hub has them."""
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizer
    if normalizer:
        made.normalizer = normalizer
    made.train_from_iterator(sentences(), trainer)
    special = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    return PreTrainedTokenizerFast(tokenizer_object=made, split_special_tokens=True, **special)


def byte_level(prefix, normalizer=None):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    cut = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return learned(models.BPE(), trainer, cut, normalizer)


def accents_last():
    """A word of accents alone leaves two spaces, which are a piece to a Metaspace."""
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    steps = [spaces, normalizers.Strip(), normalizers.NFD(), normalizers.StripAccents()]
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False)
    cut = pre_tokenizers.Metaspace()
    return learned(models.BPE(), trainer, cut, normalizers.Sequence(steps))


def bert():
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=["<unk>"], show_progress=False
    )
    cut, normal = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=True)
    return learned(models.WordPiece(unk_token="<unk>"), trainer, cut, normal)


def llama():
    """Cut at no space: pieces of several words."""
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False)
    cut = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return learned(models.BPE(), trainer, cut)


MADE = {
    "piece": lambda: train_tokenizer(sentences(), 120),
    "cased": lambda: train_tokenizer(sentences(), 120, lowercase=False),
    "word": lambda: build_word_tokenizer(sentences()),
    "bart": lambda: byte_level(True),
    "gpt": lambda: byte_level(False),
    "stripped": lambda: byte_level(False, normalizers.Strip()),
    "accents": accents_last,
    "bert": bert,
    "llama": llama,
}
if T5_VOCABULARY.is_file():
    MADE["t5"] = lambda: load_tokenizer(T5_VOCABULARY)


@pytest.mark.parametrize("name", MADE)
def test_words_read_once_give_the_tokens_and_starts_of_whole_texts(name):
    tokenizer = MADE[name]()
    assert reads_words_alone(tokenizer) == (name not in ("bart", "stripped", "accents", "llama"))
    many = [*texts(400, seed=0), *sentences(30)]
    found = tokenizer(many, add_special_tokens=False, return_offsets_mapping=True)
    starts = list(map(find_word_starts, many, found["offset_mapping"]))
    reader, read = WordReader(tokenizer), ([], [])
    for first in range(0, len(many), 100):
        for column, some in zip(read, reader.read(many[first : first + 100]), strict=True):
            column.extend(some.to_pylist())
    for row, text in enumerate(many):
        assert read[0][row] == found["input_ids"][row], repr(text)
        assert read[1][row] == starts[row], repr(text)

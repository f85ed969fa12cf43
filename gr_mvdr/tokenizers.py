"""Tokenisers: a pretrained one by name, a vocabulary file, or a Unigram model trained here.

A text is text: the characters "</s>" within it become ordinary pieces, never the end token. What a
model puts around texts (end tokens, markers, docids) it adds as ids (`gr_mvdr.template`).
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gr_mvdr.evaluation.bm25 import split_words
from gr_mvdr.files import check_file, check_files, hub_options, reading

# T5's own order of special ids, which a tokeniser that is made here has too.
PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
# A private character that no text contains; pieces with it are dropped after training.
_MARK = "\ue000"
_WORD = re.compile(r"\w+")
# A tokeniser is trained on this many letters of a word. A single sequence of 300,000 letters (DNA,
# base64) has so many different substrings that training takes minutes or does not end.
_LONGEST_WORD = 256
_LONG_WORD = re.compile(rf"\b(\w{{{_LONGEST_WORD}}})(\w+)")
SPECIAL_TOKENS = ["<pad>", "</s>", "<unk>", "<extra_id_0>"]
# Python's \w, written out: that of `tokenizers` takes combining marks in as well.
_LETTERS = tokenizers.Regex(r"[\p{L}\p{N}_]+")
WORD_SPLIT = tokenizers.pre_tokenizers.Split(_LETTERS, behavior="removed", invert=True)


def load_tokenizer(source: str | Path, prefix_space: bool | None = None) -> PreTrainedTokenizerBase:
    """A tokeniser from a `tokenizer.json`, a folder or a hub name.

    Special tokens that occur in a text are read as text.

    Args:
        source: a Path is on this machine; a text may be a name on the hub.
        prefix_space: of a byte-level tokeniser (BART, RoBERTa), whether a text's first word is
            read as one within a text (SEAL); None = as the tokeniser was saved.

    Raises:
        FileNotFoundError: the tokeniser does not exist.
        ValueError: it is broken; in a `tokenizer.json` the ids of <pad>, </s> and <unk> are not
            T5's 0, 1, 2.
    """
    file = str(source).endswith(".json")
    local = isinstance(source, Path) or file
    if local and not Path(source).exists():
        raise FileNotFoundError(f"tokenizer.path={source}: no such file")
    with reading(f"tokenizer.path={source}: is broken"):
        if file:
            tokenizer = _wrap(tokenizers.Tokenizer.from_file(str(check_file(source))))
            ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
            if ids != (PAD_ID, EOS_ID, UNK_ID):
                raise ValueError(f"<pad>, </s> and <unk> must have T5's ids 0, 1, 2, got {ids}")
        else:
            if Path(source).is_dir():
                check_files(Path(source))
            options = {"split_special_tokens": True, "trust_remote_code": False}
            options |= {"local_files_only": local} | hub_options(source)  # a folder is no hub name
            tokenizer = AutoTokenizer.from_pretrained(str(source), **options)
            if isinstance(tokenizer, PreTrainedTokenizerFast):  # one in Python has no pieces
                _split_special_pieces(tokenizer)
        if not isinstance(tokenizer.model_max_length, int | float):  # compared at each call
            raise ValueError("model_max_length must be a number")
    if prefix_space is not None:
        _set_prefix_space(tokenizer, prefix_space)
    return tokenizer


def _set_prefix_space(tokenizer: PreTrainedTokenizerBase, value: bool) -> None:
    """Sets the option on the steps themselves: only some classes of transformers pass it on.

    The tokeniser's own attribute is what it saves: RoBERTa's and BART's class makes the steps from
    it when it is loaded.
    """
    model = getattr(tokenizer, "backend_tokenizer", None)  # ByT5's bytes have none
    step = None if model is None else model.pre_tokenizer
    steps: Any = step if isinstance(step, tokenizers.pre_tokenizers.Sequence) else [step]
    for part in steps:
        if hasattr(part, "add_prefix_space"):
            part.add_prefix_space = tokenizer.add_prefix_space = value


def add_special_tokens(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> None:
    """Gives a tokeniser these tokens where it lacks them; within a text they stay text."""
    known = tokenizer.get_vocab()
    new = [AddedToken(text, special=True, normalized=False) for text in texts if text not in known]
    if new:
        tokenizer.add_tokens(new, special_tokens=True)
        _split_special_pieces(tokenizer)


def token_strings(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Tokens as they are drawn; a docid token as its number among these, "#17"."""
    size = len(tokenizer)
    return [tokenizer.convert_ids_to_tokens(i) if i < size else f"#{i - size}" for i in ids]


def _split_special_pieces(tokenizer: PreTrainedTokenizerBase) -> None:
    """Cuts special tokens that occur in texts behind their first character.

    `split_special_tokens` alone is not enough: T5's vocabulary holds "</s>" and "<extra_id_0>" as
    pieces like any other, which Unigram would choose.
    """
    model = tokenizer.backend_tokenizer
    added = model.get_added_tokens_decoder().values()
    rests: dict[str, list[str]] = {}  # first character → what follows it
    for token in sorted(token.content for token in added if token.special):
        if len(token) > 1:
            rests.setdefault(token[0], []).append(re.escape(token[1:]))
    if not rests:
        return
    pattern = "|".join(f"{re.escape(start)}(?={'|'.join(rest)})" for start, rest in rests.items())
    cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    before = model.pre_tokenizer
    if before is None:
        model.pre_tokenizer = cut
    elif cut.__getstate__() not in before.__getstate__():  # a saved tokeniser has it already
        model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([before, cut])


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, lowercase: bool = True
) -> PreTrainedTokenizerFast:
    """Trains a SentencePiece-like Unigram tokeniser with T5's special ids on a collection.

    Of a word longer than 256 letters, training sees the first 256. The trained tokeniser reads
    such a word whole.

    Args:
        texts: the documents and training queries.
        vocab_size: at most this many pieces, the special ones included.
        lowercase: map text to lower case first. A model trained from scratch cannot know that
            "The" and "the" are one word.

    Raises:
        ValueError: the texts have more different characters than the vocabulary has room for.
    """
    model = tokenizers.Tokenizer(tokenizers.models.Unigram())
    spaces = tokenizers.normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    steps = [tokenizers.normalizers.NFKC(), spaces, tokenizers.normalizers.Strip()]
    if lowercase:
        steps.append(tokenizers.normalizers.Lowercase())
    model.normalizer = tokenizers.normalizers.Sequence(steps)
    model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Metaspace(),
            # A comma stuck to a name would make two pieces of one word.
            tokenizers.pre_tokenizers.Punctuation("isolated"),
        ]
    )
    model.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        unk_token="<unk>",
        show_progress=False,
    )
    # Training sums floats in the order of its threads: one thread gives the same pieces each time.
    threads = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        model.train_from_iterator(_with_marked_copies(_cut_long_words(texts)), trainer)
    except Exception as error:  # `tokenizers` raises nothing more special
        if "vocabulary is not large enough" not in str(error):
            raise
        rule = "must be larger than the number of different characters in the texts"
        raise ValueError(f"tokenizer.vocab_size={vocab_size}: {rule}") from None
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        os.environ |= {} if threads is None else {"TOKENIZERS_PARALLELISM": threads}
    model.model = tokenizers.models.Unigram(_settled_vocabulary(model), UNK_ID, False)
    return _wrap(model)


def _cut_long_words(texts: Iterable[str]) -> Iterator[str]:
    """The texts with long words cut to `_LONGEST_WORD` letters; prints how many were cut.

    The letters of what is cut off follow as words of one letter, so that the alphabet is complete.
    """
    count = 0
    for text in texts:
        cut, words = _LONG_WORD.subn(lambda w: " ".join([w[1], *sorted(set(w[2]))]), text)
        count += words
        yield cut
    if count:
        print(
            f"tokenizer: training sees only the first {_LONGEST_WORD} letters of longer words "
            f"({count:,} in these texts)"
        )


def _with_marked_copies(texts: Iterable[str]) -> Iterator[str]:
    """Every text, and a copy of it in which every word ends with a mark.

    The trainer's first candidates are the strings that occur in at least two *distinct* words, so
    a word that is part of no other never becomes a piece, however frequent ("was" falls into "▁"
    and "was", a name into syllables). With a marked twin every word is part of another one. On the
    almanac this takes 2.2 pieces a word down to 1.2.
    """
    for text in texts:
        yield text
        yield _WORD.sub(rf"\g<0>{_MARK}", text)


def _settled_vocabulary(model: tokenizers.Tokenizer) -> list[tuple[str, float]]:
    """The trained pieces and scores, without marks and in an order of their own.

    The trainer gives the characters that only fill the alphabet the lowest score, 0.0001 more, and
    so on, in the order of a hash table that differs from one call to the next. Here they share the
    lowest score; scores are rounded, as sums of floats depend on that order too.
    """
    vocabulary = [(p, round(score, 6)) for p, score in json.loads(model.to_str())["model"]["vocab"]]
    special, pieces = vocabulary[: len(SPECIAL_TOKENS)], dict(vocabulary[len(SPECIAL_TOKENS) :])
    lowest = min(pieces.values())
    characters = [piece for piece in pieces if len(piece) == 1]
    reach = lowest + 0.0001 * len(characters)
    pieces |= {piece: lowest for piece in characters if pieces[piece] < reach}
    kept = [item for item in pieces.items() if _MARK not in item[0]]
    return special + sorted(kept, key=lambda item: (-item[1], item[0]))


def build_word_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokeniser of whole words, those of `gr_mvdr.evaluation.bm25.words`: the terms of lexical
    systems.

    Args:
        texts: each of their words gets an id; other words become the unknown token.
    """
    words = dict.fromkeys(word for text in texts for word in split_words(text))
    ids = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *words])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    model.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Lowercase(), tokenizers.normalizers.Replace("ς", "σ")]
    )
    model.pre_tokenizer = WORD_SPLIT
    return _wrap(model)


def _wrap(model: tokenizers.Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=["<extra_id_0>"],
        split_special_tokens=True,
    )
    _split_special_pieces(tokenizer)
    return tokenizer

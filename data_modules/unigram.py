"""A Unigram tokeniser trained on a collection, in the form of SentencePiece."""

import json
import os
import re
from collections.abc import Iterable, Iterator

import tokenizers
from transformers import PreTrainedTokenizerFast

from gr_mvdr.tokenizers import SPECIAL_TOKENS, UNK_ID, wrap_tokenizer

# A private character that no text contains; pieces with it are dropped after training.
_MARK = "\ue000"
_WORD = re.compile(r"\w+")
# Training sees this many letters of a word. A single sequence of 300,000 letters (DNA, base64) has
# such a number of different substrings that training takes minutes or does not end.
_LONGEST_WORD = 256
_LONG_WORD = re.compile(rf"\b(\w{{{_LONGEST_WORD}}})(\w+)")


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
    return wrap_tokenizer(model)


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

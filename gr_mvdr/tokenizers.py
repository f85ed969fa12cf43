"""Tokenisers: a pretrained one by name, a vocabulary file, or the words of a collection.

A text never produces special tokens: the characters "</s>" in it become ordinary pieces, not the
end token. What a model puts around texts (end tokens, markers, docids) is added as token ids
(`gr_mvdr.template`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers
from transformers import (
    AddedToken,
    AutoTokenizer,
    BatchEncoding,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from gr_mvdr.analyzer import (
    Analyzer,
    Language,
    Remembered,
    find_spans,
    list_stop_words,
    split_words,
)
from gr_mvdr.files import check_file, check_files, find_file, hub_options, read_json, reading

# T5's order of special ids, which this library's own tokenisers share.
PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
SPECIAL_TOKENS = ["<pad>", "</s>", "<unk>", "<extra_id_0>"]
_SPECIAL = dict(
    pad_token="<pad>",
    eos_token="</s>",
    unk_token="<unk>",
    extra_special_tokens=["<extra_id_0>"],
    split_special_tokens=True,
)
Spell = Callable[[Sequence[int]], str]  # docid tokens → their names


def load_tokenizer(
    source: str | Path, prefix_space: bool | None = None, key: str = "tokenizer.path"
) -> PreTrainedTokenizerBase:
    """Loads a tokeniser from a `tokenizer.json`, a folder or a hub name.

    Special tokens that occur in a text are read as text.

    Args:
        source: a Path is a local file or folder; a string may also be a hub name.
        prefix_space: whether a byte-level tokeniser (BART, RoBERTa) reads the first word of a text
            like a word inside the text (SEAL); None = as the tokeniser was saved.
        key: the option that holds the source, which errors mention; may be "".

    Raises:
        FileNotFoundError: the tokeniser does not exist.
        ValueError: the tokeniser is broken; it has no token that ends a text; or the ids of
            <pad>, </s> and <unk> in a `tokenizer.json` are not T5's 0, 1, 2.
    """
    file, name = str(source).endswith(".json"), f"{key}={source}" if key else source
    local = isinstance(source, Path) or file
    if local and not Path(source).exists():
        raise FileNotFoundError(f"{name}: no such file")
    with reading(f"{name}: its tokeniser cannot be used"):
        if file:
            tokenizer = wrap_tokenizer(tokenizers.Tokenizer.from_file(str(check_file(source))))
            ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
            if ids != (PAD_ID, EOS_ID, UNK_ID):
                raise ValueError(f"<pad>, </s> and <unk> must have T5's ids 0, 1, 2, got {ids}")
        else:
            if Path(source).is_dir():
                check_files(Path(source))
            options = {"split_special_tokens": True, "trust_remote_code": False}
            options |= {"local_files_only": local} | hub_options(source, key)
            tokenizer = AutoTokenizer.from_pretrained(str(source), **options)
            if (language := tokenizer.init_kwargs.get("language")) is not None:
                tokenizer = WordTokenizer(tokenizer.backend_tokenizer, language)
            elif isinstance(tokenizer, PreTrainedTokenizerFast):  # ByT5's has bytes, not pieces
                _split_special_pieces(tokenizer)
                own = find_file(str(source), "sentence_bert_config.json", hub_options(source, key))
                if own and read_json(Path(own)).get("do_lower_case"):
                    _lower_case(tokenizer.backend_tokenizer)
        if tokenizer.eos_token_id is None and tokenizer.sep_token_id is None:
            raise ValueError("has no token that ends a text (eos_token, sep_token)")
        if tokenizer.pad_token_id is None:  # of a decoder-only model; padding is masked
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.sep_token
    if prefix_space is not None:
        _set_prefix_space(tokenizer, prefix_space)
    return tokenizer


def _lower_case(model: tokenizers.Tokenizer) -> None:
    """Maps texts to lower case first, as sentence-transformers does for some (XTR)."""
    steps = [tokenizers.normalizers.Lowercase(), *filter(None, [model.normalizer])]
    model.normalizer = tokenizers.normalizers.Sequence(steps)


def _set_prefix_space(tokenizer: PreTrainedTokenizerBase, value: bool) -> None:
    """Sets `add_prefix_space` on the tokeniser and on its pre-tokenisation steps.

    Only some classes of transformers pass the option on to the steps. The attribute of the
    tokeniser is what is saved: the classes of RoBERTa and BART make the steps from it when loaded.
    """
    model = getattr(tokenizer, "backend_tokenizer", None)  # ByT5's bytes have none
    step = None if model is None else model.pre_tokenizer
    steps: Any = step if isinstance(step, tokenizers.pre_tokenizers.Sequence) else [step]
    for part in steps:
        if hasattr(part, "add_prefix_space"):
            part.add_prefix_space = tokenizer.add_prefix_space = value


def add_special_tokens(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> None:
    """Adds the tokens that a tokeniser lacks; inside a text, they are still read as text."""
    known = tokenizer.get_vocab()
    new = [AddedToken(text, special=True, normalized=False) for text in texts if text not in known]
    if new:
        tokenizer.add_tokens(new, special_tokens=True)
        _split_special_pieces(tokenizer)


def token_strings(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], spell: Spell = lambda ids: ""
) -> list[str]:
    """Returns tokens as strings for display; `spell` names docid tokens (`System.spell`)."""
    text, size = tokenizer.convert_ids_to_tokens, len(tokenizer)
    return [text(i) if i < size else spell([i]) or f"#{i}" for i in ids]


def readable(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int] | str, spell: Spell = lambda ids: ""
) -> str:
    """Formats one token as the tokeniser writes it, with its word mark; several tokens as text."""
    if isinstance(tokens, str):
        return tokens
    names = " ".join(token_strings(tokenizer, tokens, spell))
    if len(tokens) == 1 or max(tokens, default=0) >= len(tokenizer):
        return names
    return tokenizer.decode(list(tokens)).strip() or names


def _split_special_pieces(tokenizer: PreTrainedTokenizerBase) -> None:
    """Splits special tokens that occur in texts after their first character.

    `split_special_tokens` alone is not enough: T5's vocabulary holds "</s>" and "<extra_id_0>" as
    ordinary pieces, which Unigram would choose.
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
    elif cut.__getstate__() not in before.__getstate__():  # a saved tokeniser already has it
        model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([before, cut])


class WordTokenizer(PreTrainedTokenizerFast):
    """A tokeniser of whole words for lexical systems: words of one term have one id.

    The ids of the special tokens come first, then those of the language's stop words, which are
    not terms, then those of the terms (`first_term`). A token is shown as the first word of the
    collection that has its term.

    Attributes:
        analyzer: the analyzer of the language.
    """

    def __init__(self, model: tokenizers.Tokenizer, language: Language = "none"):
        super().__init__(tokenizer_object=model, language=language, **_SPECIAL)
        self.analyzer = Analyzer(language)
        self._ids = {self.analyzer.term(word) or word: n for word, n in self.get_vocab().items()}
        self._ids |= {word: self.get_vocab()[word] for word in self.analyzer.stop_words}
        self._read = Remembered(lambda chunk: [*map(self._id, split_words(chunk))])

    def _id(self, word: str) -> int:
        return self._ids.get(self.analyzer.term(word) or word, UNK_ID)

    def words(self, text: str) -> list[list[int]]:
        """Returns the token ids of each word that white space separates."""
        return [*map(self._read.__getitem__, text.split())]

    def __call__(self, text: Any, pair: str = "", **options: Any) -> BatchEncoding:
        """Returns the token ids of a text, with another after it, or of several texts.

        There are no special tokens around them.
        """
        texts = [f"{text} {pair}"] if isinstance(text, str) else text
        ids = [[*chain.from_iterable(self.words(text))] for text in texts]
        found: dict[str, Any] = {"input_ids": ids[0] if isinstance(text, str) else ids}
        if options.get("return_offsets_mapping"):
            found["offset_mapping"] = [*map(find_spans, texts)]
        return BatchEncoding(found)

    def __reduce__(self) -> Any:
        return WordTokenizer, (self.backend_tokenizer, self.analyzer.language)


def first_term(language: str) -> int:
    """Returns the smallest id of a term in a `WordTokenizer` of a language."""
    return len(SPECIAL_TOKENS) + len(list_stop_words(language))


def keep_terms(texts: Iterable[Sequence[int]], language: str) -> Iterator[list[int]]:
    """Yields of each text of a `WordTokenizer` the tokens that are terms."""
    first = first_term(language)
    return ([token for token in tokens if token >= first] for tokens in texts)


def build_word_tokenizer(texts: Iterable[str], language: Language = "none") -> WordTokenizer:
    """Builds the tokeniser of the words of these texts; words of other terms are unknown tokens."""
    analyzer, words = Analyzer(language), dict[str, str]()  # term → its first word
    for chunk in dict.fromkeys(chunk for text in texts for chunk in text.split()):
        for word in split_words(chunk):
            if (term := analyzer.term(word)) is not None:
                words.setdefault(term, word)
    listed = [*SPECIAL_TOKENS, *analyzer.stop_words, *words.values()]
    ids = {token: number for number, token in enumerate(listed)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    return WordTokenizer(model, language)


def wrap_tokenizer(model: tokenizers.Tokenizer) -> PreTrainedTokenizerFast:
    """Wraps a tokeniser and gives it T5's special tokens; inside a text, these are read as text."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, **_SPECIAL)
    _split_special_pieces(tokenizer)
    return tokenizer

"""The analyzer: how a text of a language becomes the terms that BM25 and questions on words read.

A text is split into words (`split_words`); stop words are left out, and the others are stemmed
(Snowball). Chinese, Japanese, Korean, Thai and other scripts without spaces, or whose words are
long compounds, are split into overlapping pairs of characters (as by Lucene's CJK analyzer).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Annotated, Any

import regex

from gr_mvdr.options import Rule

# Code → the name of its Snowball stemmer; "" = the language has none.
LANGUAGES = {
    "none": "",
    "ar": "arabic",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "eu": "basque",
    "fa": "persian",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "ja": "",
    "ko": "",
    "lt": "lithuanian",
    "ne": "nepali",
    "nl": "dutch",
    "no": "norwegian",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "th": "",
    "tr": "turkish",
    "zh": "",
}
Language = Annotated[
    str,
    Rule(
        "auto, none, or the code of a language with an analyzer, such as en, de or zh",
        lambda name: name == "auto" or name in LANGUAGES,
    ),
]
# Scripts that tell the language: a tenth of a sample's letters is enough, since Japanese and
# Chinese texts quote Latin words. Kana comes before Han, which Japanese also uses.
_SCRIPTS = {
    "ja": r"[\p{Hiragana}\p{Katakana}]",
    "zh": r"\p{Han}",
    "ko": r"\p{Hangul}",
    "th": r"\p{Thai}",
    "hi": r"\p{Devanagari}",
    "ta": r"\p{Tamil}",
    "el": r"\p{Greek}",
    "hy": r"\p{Armenian}",
    "fa": "[پچژگ]",
    "ar": r"\p{Arabic}",
}
_SHARE_OF_SCRIPT = {"fa": 0.01}  # Persian's own letters are rare in it
_SHARE_OF_STOP_WORDS = 0.1  # a language's share of a sample's words, at least
_SAMPLE = 1000  # texts, of which the first 1,000 characters count

_ASCII_WORD = re.compile(r"\w+")
# Words keep their combining marks, and the joiners of Indic scripts and of Persian.
_WORD = regex.compile(r"[\w\p{M}\u200c\u200d]+")
# A character of a script without spaces.
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*"
_CHARACTER = regex.compile(UNSPACED)
_RUN = regex.compile(rf"(?P<unspaced>(?:{UNSPACED})+)|(?:(?!{UNSPACED}).)+")
_KEPT = 2**20  # most chunks whose terms an analyzer remembers


def split_words(text: str) -> list[str]:
    """Splits a text into words: lower-cased runs of letters, marks, digits and underscores.

    A run in a script without spaces becomes its overlapping pairs of characters.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    # All small sigmas become σ: lower() gives ς or σ depending on what follows the letter. The
    # small form of İ is an i with a dot above.
    text = unicodedata.normalize("NFKC", text).lower().replace("ς", "σ").replace("i̇", "i")
    words = _WORD.findall(text)
    return [*chain.from_iterable(map(_split_unspaced, words))] if _CHARACTER.search(text) else words


def _split_unspaced(word: str) -> Iterator[str]:
    for run in _RUN.finditer(word):
        characters = _CHARACTER.findall(run[0]) if run["unspaced"] else []
        yield from map("".join, pairwise(characters)) if len(characters) > 1 else [run[0]]


def find_spans(text: str) -> list[tuple[int, int]]:
    """Finds the characters [start, end) of each of a text's words.

    A word that is spelled in another way than in the text, such as the ligature "ﬁ", covers the
    whole run without white space that it is in.
    """
    spans = []
    for chunk in re.finditer(r"\S+", text):
        place, plain = 0, chunk[0].lower()
        for word in split_words(chunk[0]):
            if (start := plain.find(word, place)) < 0 or len(plain) != len(chunk[0]):
                spans.append(chunk.span())
                continue
            spans.append((chunk.start() + start, chunk.start() + start + len(word)))
            paired = _CHARACTER.match(word)
            place = start + (paired.end() if paired else len(word))  # pairs overlap
    return spans


class Remembered(dict[str, Any]):
    """What a function returns for each chunk of a text; most chunks occur again and again."""

    def __init__(self, function: Callable[[str], Any]):
        self.function = function

    def __missing__(self, chunk: str) -> Any:
        if len(self) >= _KEPT:
            self.clear()
        self[chunk] = value = self.function(chunk)
        return value


class Analyzer:
    """Turns texts of a language into terms.

    Attributes:
        stop_words: the words that are not terms.
    """

    def __init__(self, language: Language = "none"):
        """
        Args:
            language: a code of `LANGUAGES`; "none" = words are terms, without stems or stop words.
        """
        self.language = language
        self.stop_words, self._stem = list_stop_words(language), str
        if stemmer := LANGUAGES[language]:
            import Stemmer

            self._stem = Stemmer.Stemmer(stemmer).stemWord
        self._terms = Remembered(lambda chunk: [*filter(None, map(self.term, split_words(chunk)))])

    @classmethod
    def of(cls, language: Language, texts: Sequence[str]) -> "Analyzer":
        """Makes the analyzer of texts; "auto" = their language is guessed."""
        return cls(guess_language(texts) if language == "auto" else language)

    def term(self, word: str) -> str | None:
        """Returns the term of a word of `split_words`; None for a stop word."""
        return None if word in self.stop_words else self._stem(word)

    def terms(self, text: str) -> list[str]:
        """Returns the terms of a text in their order."""
        # No word has white space.
        return [*chain.from_iterable(map(self._terms.__getitem__, text.split()))]


def list_stop_words(language: str) -> dict[str, None]:
    """Returns bm25s's stop words of a language in their order; {} if it has no list."""
    if not LANGUAGES[language]:
        return {}
    from bm25s import stopwords

    name = "EN" if language == "en" else LANGUAGES[language].upper()
    listed = getattr(stopwords, f"STOPWORDS_{name}", ())
    return dict.fromkeys(word for word in listed if split_words(word) == [word])


def guess_language(texts: Sequence[str]) -> str:
    """Guesses the language of texts by their script, else by their stop words; "none" if unclear.

    Args:
        texts: evenly spaced ones are read, 1,000 at most.
    """
    sample = " ".join(text[:1000] for text in texts[:: max(1, len(texts) // _SAMPLE)][:_SAMPLE])
    letters = max(1, len(regex.findall(r"\p{L}", sample)))
    for code, script in _SCRIPTS.items():
        if len(regex.findall(script, sample)) >= _SHARE_OF_SCRIPT.get(code, 0.1) * letters:
            return code
    words = Counter(split_words(sample))
    shares = {
        code: sum(words[word] for word in list_stop_words(code)) / max(1, words.total())
        for code in LANGUAGES
    }
    best = max(shares, key=shares.__getitem__)
    return best if shares[best] >= _SHARE_OF_STOP_WORDS else "none"

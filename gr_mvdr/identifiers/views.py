"""Views of a document: its body, any n-gram of which names it, and texts that name it as a whole.

Full SEAL (Bevilacqua et al. 2022) has the title besides the body, MINDER (Li et al. 2023) also
pseudo-queries. A view is a name: the special token NAME asks for it in a source, NAME_end ends each
of its texts, and a table of documents holds them as `NAME_tokens`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from gr_mvdr.decoding.ngram_index import DEEPEST, DEPTH
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.identifiers.scheme import Table, check_choice

BODY = "body"


def find_views(special_tokens: Iterable[str]) -> list[str]:
    """The views besides the body: every NAME of a special token NAME_end.

    Raises:
        ValueError: a name is no plain word: files are called by it.
    """
    views = [name.removesuffix("_end") for name in special_tokens if name.endswith("_end")]
    for view in views:
        if not view.isidentifier() or view == BODY:
            raise ValueError(
                f"tokenizer.special_tokens.{view}_end: the view must be named by a word, not {BODY}"
            )
    return views


def check_bonus(bonus: Iterable[str], special_tokens: Iterable[str]) -> None:
    """Refuses, as `find_views` does, and the bonus of a view that there is not."""
    views = find_views(special_tokens)
    for view in bonus:
        check_choice("model.bonus", view, views)


def read_texts(found: Sequence) -> list[list[int]]:
    """A document's texts in one view, as `NAME_tokens` has them: one token list, or several."""
    texts = [found] if found and isinstance(found[0], int) else found
    return [list(text) for text in texts if text]


class Views:
    """The texts of documents in all views besides the body.

    Attributes:
        texts: view → of each document its texts as they are generated, each with what ends it. A
            view that no document has a text of is left out, and so is a text of more tokens than an
            n-gram index is deep.
    """

    def __init__(self, documents: Table, special_tokens: Mapping[str, list[int]], stop: int):
        """
        Args:
            documents: one that lacks a view's column has no texts of it.
            special_tokens: token ids by name; stop: ends whatever is generated.
        """
        self.stop = stop
        self.texts: dict[str, list[list[list[int]]]] = {}
        for view in find_views(special_tokens):
            end, column = special_tokens[f"{view}_end"], _column(documents, f"{view}_tokens")
            most = DEEPEST - len(end)
            ended = [
                [[*text, *end, stop] for text in read_texts(found) if len(text) <= most]
                for found in column
            ]
            if any(ended):
                self.texts[view] = ended

    @property
    def depth(self) -> int:
        """How deep an n-gram index must be to count every text as a key."""
        texts = chain.from_iterable(chain.from_iterable(self.texts.values()))
        return max([DEPTH, *(len(text) - 1 for text in texts)])

    def indexed(self, documents: Table) -> Iterator[list[int]]:
        """Of each document the tokens whose n-grams are indexed: all its texts, then its body.

        One index holds all views, as MINDER's does: the keys of all views are weighed by one
        corpus, and what one view's keys have covered counts less for another's.
        """
        # Before a text and a key there is nothing, not even BART's <s>.
        for number, body in enumerate(documents["tokens"][:]):
            texts = chain.from_iterable(own[number] for own in self.texts.values())
            yield [*chain.from_iterable(text[:-1] for text in texts), *body, self.stop]

    def tries(self, documents: Iterable[int] | None = None) -> dict[str, Trie]:
        """Of each view a trie of its texts, of all documents or of those of these numbers."""
        found = {}
        for view, texts in self.texts.items():
            chosen = texts if documents is None else [texts[number] for number in documents]
            if any(chosen):
                found[view] = Trie.build(list(chain.from_iterable(chosen)))
        return found

    def save(self, folder: Path, collection: str) -> None:
        """Writes the tries of all documents; collection: see `Trie.save`."""
        for view, trie in self.tries().items():
            trie.save(folder / view, collection)

    def load(self, folder: Path, collection: str) -> dict[str, Trie]:
        """Opens the tries that `save` wrote; see `Trie.load`."""
        return {view: Trie.load(folder / view, collection) for view in self.texts}


def _column(documents: Table, name: str) -> Sequence:
    """A column of a table; [] = it has none."""
    try:
        return documents[name]
    except KeyError:  # documents that came without, such as a person's
        return []

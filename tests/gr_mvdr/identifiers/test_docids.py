import numpy as np
import pytest
from datasets import Dataset

from gr_mvdr.identifiers.cluster_tree import SemanticDocids
from gr_mvdr.identifiers.docids import AtomicDocids, NaiveDocids, Titles
from gr_mvdr.tokenizers import EOS_ID
from models.beyond.quantised_docids import QuantisedDocids

FIRST = 100


def documents(n, prefix="d"):
    """Documents whose one token is their number, and whose text is words of a few topics."""
    topics = ["cat dog mouse", "star moon sun", "bread cheese salt", "rain wind snow"]
    texts = [f"{topics[i % 4]} word{i % 7} word{i % 5}" for i in range(n)]
    rows = {"id": [f"{prefix}{i}" for i in range(n)], "tokens": [[i] for i in range(n)]}
    return Dataset.from_dict({**rows, "text": texts, "title_tokens": [[i % 9] for i in range(n)]})


def fitted(scheme, n, points=None):
    """A scheme that knows n documents; `points`: their vectors, in place of TF-IDF's."""
    if points is not None:
        scheme.embed = lambda table: np.float32([points[row[0]] for row in table["tokens"]])
    scheme.fit(documents(n), FIRST)
    return scheme


def assigned(scheme, table):
    return scheme.assign(table).sequences


def test_atomic_docids_are_one_new_token_a_document():
    scheme = fitted(AtomicDocids(), 3)
    assert assigned(scheme, documents(5).select([2, 0, 4])) == [[102], [100], []]
    assert (scheme.n_tokens, scheme.width) == (3, 3)


def test_naive_docids_are_decimal_digits_and_the_end_token():
    scheme = fitted(NaiveDocids(), 12)
    table = documents(14).select([0, 7, 10, 13, 12])
    digits = [[100], [107], [101, 100], [101, 102], [101, 103]]
    assert assigned(scheme, table) == [[*tokens, EOS_ID] for tokens in digits]
    assert (scheme.n_tokens, scheme.width) == (10, None)


def test_new_documents_are_numbered_until_the_leaf_is_full():
    """One leaf for all: 3 documents known, 5 numbers; then the nearest known document's."""
    points = [[0], [10], [20], [99], [1], [11], [16], [3]]
    scheme = fitted(SemanticDocids(2, 5), 3, points)
    assert assigned(scheme, documents(8)) == [[100 + n] for n in [0, 1, 2, 3, 4, 1, 2, 0]]


# Laws of all schemes ----------------------------------------------------------------------------

SCHEMES = {
    "atomic": AtomicDocids,
    "naive": NaiveDocids,
    "titles": Titles,
    "semantic": lambda: SemanticDocids(k=4, leaf_size=5),
    "binary": lambda: SemanticDocids(k=2, leaf_size=1),
    "shared": lambda: SemanticDocids(k=4, leaf_size=9, positional=False),
    "quantised": lambda: QuantisedDocids(levels=2, codes=4),
}


@pytest.mark.parametrize("kind", SCHEMES)
def test_known_documents_keep_their_identifiers_and_a_loaded_scheme_says_the_same(kind, tmp_path):
    scheme, loaded = fitted(SCHEMES[kind](), 60), SCHEMES[kind]()
    scheme.save(tmp_path / "scheme")
    known = scheme.assign(documents(60))
    loaded.load(tmp_path / "scheme")
    assert (loaded.n_tokens, loaded.width) == (scheme.n_tokens, scheme.width)
    every = assigned(scheme, documents(90))
    shuffled = documents(90).select([80, 4, 70])
    for one in (scheme, loaded):
        assert assigned(one, documents(90)) == every and every[:60] == known.sequences
        assert assigned(one, documents(75)) == every[:75]
        assert assigned(one, shuffled)[1] == every[4]
        other = documents(60).map(lambda row: {"text": "other", "tokens": [7]})
        assert assigned(one, other) == known.sequences
    # One identifier a document, none the beginning of another, in the tokens of their positions.
    distinct = set(map(tuple, known.sequences))
    assert len(distinct) == (9 if kind == "titles" else 60)
    named = {*distinct, *map(tuple, every)}
    assert not any(s[:end] in named - {()} for s in named for end in range(len(s)))
    width = scheme.width or scheme.n_tokens
    for sequence in every if kind != "titles" else ():
        for position, token in enumerate(t for t in sequence if t != EOS_ID):
            assert 0 <= token - FIRST - (position * width if scheme.width else 0) < width
    assert {path.name for path in tmp_path.iterdir()} == {"scheme"}, "nothing half-written"


def test_a_scheme_is_loaded_only_as_what_it_was_saved(tmp_path):
    fitted(NaiveDocids(), 1).save(tmp_path / "naive")
    with pytest.raises(ValueError, match="scheme=AtomicDocids: .* made with scheme=NaiveDocids"):
        AtomicDocids().load(tmp_path / "naive")
    fitted(SemanticDocids(k=4, leaf_size=5), 1).save(tmp_path / "semantic")
    with pytest.raises(ValueError, match="model.identifiers.k=3: .*semantic.* made with k=4"):
        SemanticDocids(k=3, leaf_size=5).load(tmp_path / "semantic")

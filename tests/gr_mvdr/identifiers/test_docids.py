import numpy as np
import pytest
from datasets import Dataset

from gr_mvdr.identifiers.cluster_tree import SemanticDocids
from gr_mvdr.identifiers.docids import AtomicDocids, NaiveDocids
from gr_mvdr.identifiers.scheme import Identifiers
from gr_mvdr.tokenizers import EOS_ID
from models.beyond.quantised_docids import QuantisedDocids

FIRST = 100
OWN = {"_target_": "gr_mvdr.identifiers.document_embeddings.OwnEncoder", "length": 9}


def documents(n, prefix="d"):
    """Documents whose one token is their number, and whose text is words of a few topics."""
    topics = ["cat dog mouse", "star moon sun", "bread cheese salt", "rain wind snow"]
    texts = [f"{topics[i % 4]} word{i % 7} word{i % 5}" for i in range(n)]
    rows = {"id": [f"{prefix}{i}" for i in range(n)], "tokens": [[i] for i in range(n)]}
    return Dataset.from_dict({**rows, "text": texts})


def points(n, seed=0):
    """An encoder: document number i has the i-th of random points."""
    table = np.random.default_rng(seed).normal(size=(n, 6))
    return lambda tokens, length: table[[row[0] for row in tokens]]


def fitted(n=120, encode=None, **options):
    scheme = SemanticDocids(**{"k": 4, "leaf_size": 5, "embeddings": OWN, **options})
    scheme.fit(documents(n), FIRST, encode or points(200))
    return scheme


def prefix_free(sequences):
    """Whether no sequence begins with another one; equal ones aside."""
    distinct = {tuple(sequence) for sequence in sequences}
    return not any(s[:end] in distinct for s in distinct for end in range(len(s)))


def distinct(sequences):
    return len({tuple(sequence) for sequence in sequences}) == len(sequences)


# Atomic and naive -------------------------------------------------------------------------------


def test_atomic_docids_are_one_new_token_a_document():
    scheme = AtomicDocids()
    scheme.fit(documents(3), FIRST)
    assert scheme.assign(documents(3)) == [[100], [101], [102]]
    assert scheme.assign(documents(3).select([2, 0])) == [[102], [100]]
    assert (scheme.n_tokens, scheme.width) == (3, 3)


def test_atomic_docids_skip_or_refuse_new_documents():
    for choice in ("skip", "refuse"):
        scheme = AtomicDocids(choice)
        scheme.fit(documents(2), FIRST)
        if choice == "skip":
            assert scheme.assign(documents(4)) == [[100], [101], [], []]
        else:
            with pytest.raises(ValueError, match="refuse: 2 documents .* the first is 'd2'"):
                scheme.assign(documents(4))


def test_naive_docids_are_decimal_digits_and_the_end_token():
    scheme = NaiveDocids()
    scheme.fit(documents(12), FIRST)
    found = scheme.assign(documents(12))
    assert found[0] == [100, EOS_ID] and found[7] == [107, EOS_ID]
    assert found[10] == [101, 100, EOS_ID] and found[11] == [101, 101, EOS_ID]
    assert distinct(found) and prefix_free(found)
    assert (scheme.n_tokens, scheme.width) == (10, None)


# Semantic ---------------------------------------------------------------------------------------


def test_the_tokens_of_a_tree_worked_out_by_hand():
    """Points 0 1 and 100 101 and 130 on a line, split in two and the larger part again."""
    line = np.array([[0], [100], [1], [101], [130]]) * np.array([[0, 1]]) + [[50, 0]]
    scheme = SemanticDocids(k=2, leaf_size=2, embeddings=OWN)
    scheme.fit(documents(5), FIRST, lambda tokens, length: line[[row[0] for row in tokens]])
    zero, hundred, one, hundred_one, far = scheme.assign(documents(5))
    assert scheme.width == 2 and scheme.n_tokens == 3 * 2
    # Position 0 has tokens 100 and 101, position 1 102 and 103, position 2 104 and 105.
    assert zero[0] == one[0] != hundred[0] == hundred_one[0] == far[0]
    assert {zero[0], far[0]} == {100, 101}
    assert (zero[1:], one[1:]) == ([102], [103])
    assert hundred[1] == hundred_one[1] != far[1]
    assert (hundred[2], hundred_one[2], far[2:]) == (104, 105, [104])


OPTIONS = [
    dict(k=2, leaf_size=1, balanced=False, positional=True),
    dict(k=4, leaf_size=5, balanced=True, positional=False),
    dict(k=10, leaf_size=3, balanced=False, positional=False),
    dict(k=3, leaf_size=20, balanced=True, positional=True),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_identifiers_are_unique_prefix_free_and_within_their_tokens(options):
    scheme = fitted(**options)
    found = scheme.assign(documents(120))
    assert distinct(found) and prefix_free(found)
    depth, width = max(map(len, found)), max(options["k"], options["leaf_size"])
    assert scheme.n_tokens == (depth * width if options["positional"] else width)
    assert scheme.width == (width if options["positional"] else None)
    for sequence in found:
        for position, token in enumerate(sequence):
            number = token - FIRST - (position * width if options["positional"] else 0)
            assert 0 <= number < width


def test_documents_of_a_topic_share_their_prefix():
    scheme = SemanticDocids(k=4, leaf_size=3)
    scheme.fit(documents(40), FIRST)
    first = [sequence[0] for sequence in scheme.assign(documents(40))]
    assert [first[i] == first[j] for i, j in ((0, 4), (1, 5), (2, 6), (3, 7))] == [True] * 4
    assert len(set(first[:4])) == 4


@pytest.mark.parametrize("balanced", [False, True])
def test_the_same_seed_gives_the_same_identifiers(balanced):
    one, same, other = (
        fitted(balanced=balanced, seed=seed).assign(documents(120)) for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize("new_documents", ["number", "nearest"])
def test_known_documents_keep_theirs_when_new_ones_come(new_documents):
    scheme = fitted(new_documents=new_documents)
    before, after = scheme.assign(documents(120)), scheme.assign(documents(200))
    assert after[:120] == before
    assert prefix_free(after) and all(after)
    # More documents at the end change no identifier before them.
    assert scheme.assign(documents(160)) == after[:160]
    # And the order of the known ones does not matter.
    assert scheme.assign(documents(200).select(range(199, -1, -1)))[80:] == before[::-1]


def test_new_documents_are_numbered_until_the_leaf_is_full():
    """One leaf for all: 3 documents known, 5 numbers."""
    scheme = fitted(3, points(9), k=2, leaf_size=5)
    found = scheme.assign(documents(9))
    assert found[:5] == [[100], [101], [102], [103], [104]]
    table = points(9)([[i] for i in range(9)], 1)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    nearest = ((table[5:, None] - table[None, :3]) ** 2).sum(2).argmin(1)
    assert found[5:] == [[100 + n] for n in nearest]
    names = [f"d{i}" for i in range(9)]
    assert Identifiers(names, found).statistics()["collision_rate"] >= 5 / 9


@pytest.mark.parametrize("new_documents", ["number", "nearest"])
def test_a_copy_of_a_known_document_is_found_next_to_it(new_documents):
    scheme = fitted(new_documents=new_documents, k=4, leaf_size=5)
    known, copies = scheme.assign(documents(120)), scheme.assign(documents(120, prefix="copy"))
    if new_documents == "nearest":
        assert copies == known
    else:
        assert [copy[:-1] for copy in copies] == [own[:-1] for own in known]


@pytest.mark.parametrize("balanced", [False, True])
def test_duplicate_documents_still_have_identifiers_of_their_own(balanced):
    scheme = SemanticDocids(k=3, leaf_size=4, balanced=balanced)
    same = documents(50).map(lambda row: {"text": "all the same"})
    scheme.fit(same, FIRST)
    found = scheme.assign(same)
    assert distinct(found) and prefix_free(found) and max(map(len, found)) <= 4


def test_a_single_document_has_the_first_token():
    scheme = SemanticDocids(k=10, leaf_size=10)
    scheme.fit(documents(1), FIRST)
    assert scheme.assign(documents(1)) == [[FIRST]]
    assert scheme.assign(documents(3)) == [[FIRST], [FIRST + 1], [FIRST + 2]]


def test_a_document_with_a_new_text_keeps_its_identifier():
    scheme = fitted()
    changed = documents(120).map(lambda row: {"tokens": [7]})
    assert scheme.assign(changed) == scheme.assign(documents(120))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"k": 121}, "model.identifiers.k=121: must be ≤ the 120 documents"),
        ({"embeddings": {"_target_": "no.Class"}}, "no.Class: is no part"),
    ],
)
def test_impossible_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fitted(**options)


# All schemes ------------------------------------------------------------------------------------

SCHEMES = {
    "atomic": AtomicDocids,
    "naive": NaiveDocids,
    "semantic": lambda: SemanticDocids(k=4, leaf_size=5),
    "balanced": lambda: SemanticDocids(k=4, leaf_size=5, balanced=True, positional=False),
    "nearest": lambda: SemanticDocids(k=4, leaf_size=5, new_documents="nearest"),
    "quantised": lambda: QuantisedDocids(levels=2, codes=4),
}


@pytest.fixture(params=SCHEMES)
def make(request):
    return SCHEMES[request.param]


def test_a_loaded_scheme_assigns_as_before(make, tmp_path):
    scheme = make()
    scheme.fit(documents(60), FIRST)
    scheme.save(tmp_path / "scheme")
    loaded = make()
    loaded.load(tmp_path / "scheme")
    for table in (documents(60), documents(90), documents(90).select([80, 4, 70])):
        assert loaded.assign(table) == scheme.assign(table)
    assert (loaded.n_tokens, loaded.width) == (scheme.n_tokens, scheme.width)
    assert {path.name for path in tmp_path.iterdir()} == {"scheme"}, "nothing half-written"


def test_an_empty_collection_is_refused(make):
    with pytest.raises(ValueError, match="model.identifiers: there is no document"):
        make().fit(documents(1).select([]), FIRST)


def test_a_scheme_is_loaded_only_as_what_it_was_saved(tmp_path):
    naive = NaiveDocids()
    naive.fit(documents(3), FIRST)
    naive.save(tmp_path / "naive")
    with pytest.raises(ValueError, match="naive: holds NaiveDocids, not AtomicDocids"):
        AtomicDocids().load(tmp_path / "naive")
    fitted().save(tmp_path / "semantic")
    with pytest.raises(ValueError, match="model.identifiers.k=3: .*semantic.* made with k=4"):
        SemanticDocids(k=3, leaf_size=5, embeddings=OWN).load(tmp_path / "semantic")
    with pytest.raises(ValueError, match="exists already"):
        fitted().save(tmp_path / "semantic")


def test_the_own_encoder_is_needed_again_only_for_new_documents(tmp_path):
    scheme = fitted()
    scheme.save(tmp_path / "scheme")
    loaded = SemanticDocids(k=4, leaf_size=5, embeddings=OWN)
    loaded.load(tmp_path / "scheme")
    assert loaded.assign(documents(120)) == scheme.assign(documents(120))
    with pytest.raises(ValueError, match="needs the model's encoder to embed 80 documents"):
        loaded.assign(documents(200))
    loaded.load(tmp_path / "scheme", points(200))
    assert loaded.assign(documents(200)) == scheme.assign(documents(200))

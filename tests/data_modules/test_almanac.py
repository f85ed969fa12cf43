"""The almanac's laws: same seed, same text; true relations; one answer a question; fitting gold."""

import hashlib
import json
from itertools import product

import pytest

from data_modules.almanac import almanac, new_world
from data_modules.almanac.prose import WORDINGS, ask, describe, told_in
from data_modules.almanac.world import (
    Concept,
    Entry,
    Link,
    Permutation,
    Phrase,
)

ASKED, CALLED, DESCRIPTIVE, PREDICATES, PLANS, SENTENCES = (
    WORDINGS[key] for key in ("asked", "called", "descriptive", "predicates", "plans", "sentences")
)


@pytest.fixture(scope="module")
def collection():
    return almanac(n_documents=500, seed=1)


@pytest.fixture(scope="module")
def entries():
    world = new_world(300, seed=5)
    return [world.entry(index) for index in range(world.size)]


# Randomness


@pytest.mark.parametrize("size", [1, 2, 7, 20, 36, 1000])
def test_a_permutation_meets_every_number_once_and_goes_back(size):
    order = Permutation(size, seed=4, name="x")
    assert sorted(map(order, range(size))) == list(range(size))
    assert all(order.inverse(order(n)) == n for n in range(size))


@pytest.mark.parametrize(("sources", "targets"), [(12, 5), (5, 12), (7, 7), (1, 3)])
def test_a_link_goes_both_ways(sources, targets):
    link = Link(sources, targets, seed=2, name="x")
    for target in range(targets):
        expected = {n for n in range(sources) if link.target(n) == target}
        assert set(link.sources(target)) == expected
    assert sum(len(list(link.sources(t))) for t in range(targets)) == sources
    assert not list(link.sources(targets))


# Names and words


# Entries


def test_a_million_entries_can_be_made_from_the_middle():
    world = new_world(1_000_000, seed=1)
    for index in (0, 499_999, 999_999):
        assert describe(world.entry(index)).text.endswith(".")


def test_lives_and_works_are_possible(entries):
    for entry in entries:
        if entry.kind == "person":
            assert 45 <= entry.died - entry.born < 100
            if entry.teacher:
                assert 16 <= entry.born - entry.teacher.born <= 55
                assert entry.teacher.position == entry.position and entry.teacher != entry
            if entry.opus:
                assert entry.opus.maker == entry
            assert entry.correspondent not in (entry, entry.teacher)
            if entry.correspondent:
                assert abs(entry.correspondent.born - entry.born) <= 15
        elif entry.kind == "work":
            assert entry.maker.born + 20 < entry.year <= entry.maker.died
            assert (entry.medium != "film") or entry.year > 1895
        elif entry.kind == "building":
            assert entry.architect.born + 20 < entry.completed <= entry.architect.died
            assert entry.noun[0] != "railway station" or entry.completed >= 1850
        elif entry.kind == "event" and entry.leader:
            assert 20 < entry.year - entry.leader.born < 65


# Prose


# Questions


def _forms(value) -> set[str]:
    """All wordings of a fact's value, worked out here once more."""
    if isinstance(value, Entry):
        return {value.name}
    if isinstance(value, Phrase):
        return {" ".join(parts) for parts in product(*value)}
    return set(value) if isinstance(value, Concept) else {str(value)}


def test_gold_and_evidence_are_the_facts_that_are_asked_and_given(entries):
    for entry in entries:
        prose = describe(entry)
        for question in ask(entry, prose, 20):
            (start, end) = question.gold[0]
            asked, forms = prose.text[start:end], _forms(getattr(entry, question.plan.asked))
            # One fact, the yearly fair of a place, may begin a sentence.
            assert asked in forms or asked[0].lower() + asked[1:] in forms
            wordings = [_forms(getattr(entry, told_in(fact))) for fact in question.plan.given]
            found = [prose.text[start:end] for start, end in question.evidence]
            given = {f[0].lower() + f[1:] for f in found} | set(found)
            assert found and all(given & forms for forms in wordings)
            assert len(found) == len(question.plan.given)
            assert question.gold[0] not in question.evidence


def test_each_question_fits_one_entry_only(entries):
    for entry in entries:
        same_kind = [e for e in entries if e.kind == entry.kind and e != entry]
        for question in ask(entry, describe(entry), 20):
            given = question.plan.given
            said = [(fact, _said(entry, fact)) for fact in given]
            fitting = [e for e in same_kind if all(_said(e, f) == value for f, value in said)]
            assert not fitting, (question.text, fitting[0].title)


def _said(entry: Entry, fact: str):
    """Who reads "a pupil of Maren Holloway" does not know which of two."""
    value = getattr(entry, fact)
    return value.name if isinstance(value, Entry) else value


def test_no_two_questions_on_an_entry_give_and_ask_the_same(entries):
    for entry in entries:
        questions = ask(entry, describe(entry), 20)
        assert len({q.text for q in questions}) == 20
        facts = [(*(f for f in q.plan.given if f != "noun"), q.plan.asked) for q in questions]
        assert len(set(facts)) == 20


# The collection


def test_the_texts_stay_what_they_were():
    found = almanac(n_documents=60, seed=2)
    tables = [found.documents, found.queries]
    rows = [*(t.to_list() for t in tables), {s: t.to_list() for s, t in found.qrels.items()}]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == "155053b0338aedf3"


def test_splits(collection):
    ids = {name: getattr(collection, name)["id"][:] for name in ("documents", "queries")}
    assert all(len(set(names)) == len(names) for names in ids.values())
    for table in collection.qrels.values():
        assert set(table["query_id"][:]) <= set(ids["queries"])
        assert set(table["document_id"][:]) <= set(ids["documents"])
    sizes = {split: len(table) for split, table in collection.qrels.items()}
    assert sizes == {"train": 4500, "dev": 450, "test": 450, "test_unseen": 100}
    documents = {split: set(t["document_id"][:]) for split, t in collection.qrels.items()}
    assert documents["train"] == documents["dev"] == documents["test"]
    assert documents["train"].isdisjoint(documents["test_unseen"])
    assert len(documents["train"] | documents["test_unseen"]) == 500
    assert sum(sizes.values()) == len(collection.queries)
    assert set(collection.queries["kind"][:]) == {"name", "description", "two attributes"}

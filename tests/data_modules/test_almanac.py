"""The almanac's laws: same seed, same text; one answer a question; fitting gold."""

import hashlib
import json
from itertools import product

import pytest

from data_modules.almanac import almanac
from data_modules.almanac.world import Concept, Entry, World, ask, describe, told_in


@pytest.fixture(scope="module")
def entries():
    world = World(300, seed=5)
    return [world.entry(index) for index in range(world.size)]


# Questions


def _forms(value) -> set[str]:
    """All wordings of a fact's value, worked out here once more."""
    if isinstance(value, Concept):
        return {" ".join(parts) for parts in product(*value)}
    return {value.name if isinstance(value, Entry) else str(value)}


def test_gold_and_evidence_are_the_facts_that_are_asked_and_given(entries):
    for entry in entries:
        prose = describe(entry)
        for question in ask(entry, prose, 20):
            (start, end) = question.gold[0]
            assert prose.text[start:end] in _forms(entry.value(question.asked))
            assert len(question.evidence) == len(question.given) > 0
            evidence = {prose.text[start:end] for start, end in question.evidence}
            assert all(evidence & _forms(entry.value(told_in(fact))) for fact in question.given)
            assert question.gold[0] not in question.evidence


def test_each_question_fits_one_entry_only(entries):
    for entry in entries:
        same_kind = [e for e in entries if e.kind == entry.kind and e != entry]
        for question in ask(entry, describe(entry), 20):
            given = question.given
            said = [(fact, entry.said(fact)) for fact in given]
            fitting = [e for e in same_kind if all(e.said(f) == value for f, value in said)]
            assert not fitting, (question.text, fitting[0].title)


# The collection


def test_the_texts_stay_what_they_were():
    found = almanac(n_documents=60, seed=2)
    tables = [found.documents, found.queries]
    rows = [*(t.to_list() for t in tables), {s: t.to_list() for s, t in found.qrels.items()}]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == "f95e344c5055ee81"

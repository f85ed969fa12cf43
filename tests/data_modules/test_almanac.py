"""The almanac's laws: same seed, same text; one answer a question; fitting gold."""

import hashlib
import json
from itertools import product

import pytest

from data_modules.almanac import almanac
from data_modules.almanac.prose import ask, describe, told_in
from data_modules.almanac.world import Concept, Entry, Phrase, World


@pytest.fixture(scope="module")
def entries():
    world = World(300, seed=5)
    return [world.entry(index) for index in range(world.size)]


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


# The collection


def test_the_texts_stay_what_they_were():
    found = almanac(n_documents=60, seed=2)
    tables = [found.documents, found.queries]
    rows = [*(t.to_list() for t in tables), {s: t.to_list() for s, t in found.qrels.items()}]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == "155053b0338aedf3"

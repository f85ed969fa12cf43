"""Perturbations: letters and words by hand, and the almanac's laws: same facts, other words."""

import re
from random import Random

import pytest

from analysis.perturbations import _wordings, make_pairs, misspell, perturb, shuffle
from data_modules.almanac import almanac, new_world
from data_modules.almanac.prose import ask, describe
from gr_mvdr.evaluation.bm25 import split_words


def test_letters_and_words_by_hand():
    assert misspell("an oak", Random(0)) == "an oak"  # no word of four letters
    assert misspell("to Bern", Random(0)) == "to Bren"
    assert sorted(shuffle("born in the town", Random(1)).split()) == ["born", "in", "the", "town"]


@pytest.fixture(scope="module")
def pairs():
    collection = almanac(60, seed=3)
    return make_pairs(collection, "test", collection.split_queries("test").select(range(0, 54, 6)))


def test_texts_that_are_said_otherwise_say_the_same(pairs):
    forms, pattern = _wordings()

    def meaning(text):  # every concept by its first wording, articles left out
        words = pattern.sub(lambda match: forms[match[2]][0], text)
        return re.sub(r"\ban?\b ?", "", words)

    for pair in pairs:
        said, written = perturb(pair, "query"), perturb(pair, "document")
        for text, other in [(pair.query, said), (pair.text, written)]:
            if "synonyms" in other:
                assert meaning(other["synonyms"]) == meaning(text) and other["synonyms"] != text
        entry = new_world(60, 3).entry(int(pair.document["id"][1:]))
        facts = describe(entry).spans
        for fact, (start, end) in facts.items():  # where no wording is chosen, the words are equal
            value = getattr(entry, fact)
            if isinstance(value, str | int) and "paraphrase" in written:
                assert pair.text[start:end] in written["paraphrase"], fact
        questions = {q.text: q.plan for q in ask(entry, describe(entry), 20)}
        assert pair.query in questions and said.get("paraphrase") not in questions
        assert " but " in said["negation"]


def test_added_words_and_removed_ones(pairs):
    for pair in pairs:
        own, asked = split_words(f"{pair.document['title']} {pair.text}"), split_words(pair.query)
        written, said = perturb(pair, "document"), perturb(pair, "query")
        start, _, term = written["rare query term"].rpartition(" ")
        assert start == pair.text and term in own and term in asked
        assert pair.shared[term] == min(pair.shared.values())
        common = written["common query term"].rpartition(" ")[2]
        assert pair.shared[common] == max(pair.shared.values()) > pair.shared[term]
        assert said["rare term"].rpartition(" ")[2] in {*own} - {*asked}
        added = written["foreign words"].removeprefix(pair.text)
        assert added and {*split_words(added)}.isdisjoint(asked)
        (start, end) = pair.answer[0]
        assert not re.search(
            rf"(?<!\w){re.escape(pair.text[start:end])}(?!\w)", written["without the answer"]
        )
        for start, end in pair.given:
            assert written["without the given"].count(pair.text[start:end]) < pair.text.count(
                pair.text[start:end]
            )

import base64
import json
import zlib
from dataclasses import replace

import pytest
import torch

from analysis.alignment_store import (
    AlignmentStore,
    AlignmentWriter,
    StoreDescription,
    TokenStrings,
    read_vocabulary,
    write_vocabulary,
)
from analysis.best_documents import KeptDocument, KeptQuery
from analysis.viewer.cases import (
    SCORE_NAMES,
    AlignedRun,
    Candidate,
    build_cases,
    choose_cases,
    embed_json,
    pack_matrices,
)
from analysis.viewer.directed_alignment import directed_alignment
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.relevance import Explanation

NAMES = TokenStrings({n: f"▁w{n}" for n in range(30)}, frozenset({2}))


def candidates(successes, **differences):
    return [
        Candidate((name, name), value, difference=differences.get(name))
        for name, value in successes.items()
    ]


def groups(chosen):
    found = {}
    for (name, _), group in chosen.items():
        found.setdefault(group, []).append(name)
    return found


def test_best_worst_and_random_pairs_are_chosen_once():
    found = groups(choose_cases(candidates({name: n / 10 for n, name in enumerate("abcdefgh")}), 2))
    assert list(found) == ["best", "worst", "random"]
    assert found["best"] == ["h", "g"] and found["worst"] == ["a", "b"]
    assert len(found["random"]) == 2 and set(found["random"]) <= set("cdef")


def test_random_pairs_depend_on_the_seed_alone():
    pairs = candidates({str(n): n for n in range(50)})
    draw = lambda pairs, seed: groups(choose_cases(pairs, 4, seed))["random"]  # noqa: E731
    assert draw(pairs, 0) == draw(pairs[::-1], 0) != draw(pairs, 1)


def test_the_score_breaks_ties_and_few_pairs_are_shared_out():
    scores = {"a": 1.0, "b": 3.0, "c": 2.0}
    tied = [Candidate((name, name), 1.0, score) for name, score in scores.items()]
    assert groups(choose_cases(tied)) == {"best": ["b"], "worst": ["a"], "random": ["c"]}


def test_pairs_where_systems_disagree_come_from_the_largest_difference():
    successes = {name: 1.0 for name in "abcdefghi"}
    found = groups(choose_cases(candidates(successes, a=0.0, b=-0.9, c=0.5, d=0.1), 2))
    assert found["disagreement"] == ["b", "c"]
    assert not {"b", "c"} & {*found["best"], *found["worst"], *found["random"]}


def test_without_rankings_cases_are_random():
    assert set(choose_cases(candidates(dict.fromkeys("abcdef")), 2).values()) == {"random"}


def unpacked(view, direction, rows, columns):
    weights = view["weights"][direction]
    levels = zlib.decompress(base64.b64decode(weights["data"]))
    levels = torch.tensor(list(levels)).view(-1, rows, columns) / 255
    low, high = (torch.tensor(weights[name])[:, None, None] for name in ("minima", "maxima"))
    return low + levels * (high - low)


def stored(folder, explanation, paradigm, ranks, system="a"):
    """A run of pairs (q<n>, d<n>) whose documents stand at the given ranks."""
    names = [[f"{side}{n}" for n in range(len(explanation))] for side in "qd"]
    with AlignmentWriter(folder, StoreDescription(system, paradigm, "fruit")) as writer:
        writer.add(explanation, *names)
    found = {
        query: {f"x{n}": -float(n) for n in range(1, 11)} | ({name: 0.5 - rank} if rank else {})
        for query, name, rank in zip(*names, ranks, strict=True)
    }
    return AlignedRun(system, AlignmentStore(folder), NAMES, Ranking(found))


def test_a_case_holds_every_layer_and_head_of_both_directions(tmp_path, make_explanation):
    explanation = make_explanation(3, layers=2, heads=3)
    run = stored(tmp_path / "a", explanation, "generative", [1, 4, 0])
    data = build_cases([run])
    json.dumps(data, allow_nan=False)
    assert [(case["group"], case["query"]) for case in data["cases"]] == [
        ("best", "q0"),
        ("worst", "q2"),
        ("random", "q1"),
    ]
    view = data["cases"][2]["views"]["0"]
    pair = run.store.explain(1)
    assert (view["layers"], view["heads"], view["rank"]) == (2, 3, 4)
    assert view["relevance"] == pytest.approx([layer.relevance.item() for layer in pair.layers])
    tokens = [data["systems"][0]["tokens"][place]["string"] for place in view["document_tokens"]]
    assert tokens == [f"▁w{n}" for n in pair.layers[-1].document_ids[0].tolist()]
    rows, columns = pair.layers[0].alignment.shape[2:]
    for direction, axis in (("query_to_document", 1), ("document_to_query", 2)):
        matrices = unpacked(view, direction, rows, columns).view(2, 4, rows, columns)
        for layer, found in zip(pair.layers, matrices, strict=True):
            expected = directed_alignment(layer, "generative", direction)[0]
            assert torch.allclose(found[0], expected, atol=1 / 255)
            if direction == "document_to_query":
                assert torch.allclose(found[1:], layer.alignment[0], atol=1 / 255)
        sums = matrices.flatten(0, 1).sum(axis)
        assert torch.allclose(sums, torch.ones_like(sums), atol=0.02)


def test_systems_disagree_where_their_reciprocal_ranks_differ_most(tmp_path, make_explanation):
    generative = make_explanation(6, layers=1, heads=1)
    vectors = Explanation(generative.layers)
    first = stored(tmp_path / "a", generative, "generative", [1, 1, 0, 2, 2, 2], "seal")
    second = stored(tmp_path / "b", vectors, "multi_vector", [1, 2, 1, 2, 1, 2], "colbert")
    data = build_cases([first, second], each=2)
    found = {case["query"]: case for case in data["cases"] if case["group"] == "disagreement"}
    assert set(found) == {"q2", "q1"}
    assert [view["rank"] for view in found["q2"]["views"].values()] == [None, 1]
    assert [system["label"] for system in data["systems"]] == ["seal", "colbert"]
    alone = build_cases([first], each=2)
    assert "disagreement" not in {case["group"] for case in alone["cases"]}


def test_a_case_says_what_tokens_and_pairs_of_them_add(tmp_path, make_explanation):
    for paradigm in ("generative", "multi_vector"):
        pairs = make_explanation(4, paradigm=paradigm)
        data = build_cases([stored(tmp_path / paradigm, pairs, paradigm, [1, 2, 3, 0])])
        (system,) = data["systems"]
        assert system["direction"] == ("document_to_query" if paradigm == "generative" else "own")
        for case in data["cases"]:
            view = case["views"]["0"]
            assert next(iter(view["weights"])) == system["direction"]  # the system's own, first
            shape = len(view["document_tokens"]), len(view["query_tokens"])
            products = unpacked(view, "product", *shape).double()
            assert len(products) == view["layers"]
            found = products[-1]
            # Cells are kept to a step of 1/127 of the largest, of which half is lost at most.
            step = found.abs().max().item() / 127 * shape[0] * shape[1] / 2
            relevance = view["relevance"][-1]
            assert found.sum().item() == pytest.approx(relevance, abs=step + 1e-5)
            query, document = view["adds"]
            assert (len(document), len(query)) == shape
            for side in (query, document):
                assert sum(side) == pytest.approx(relevance, abs=1e-4)


def test_a_case_shows_what_the_search_found_with_the_score_of_its_file(tmp_path, make_explanation):
    run = stored(tmp_path / "a", make_explanation(6), "generative", [1, 2, 0, 1, 1, 1])
    row = KeptDocument("d1", "Title", "snippet", 2, 7.0, 1, [("n gram", 2.0)], (3, 5.0))
    other = replace(row, id="not in the file", rank=1, grade=0)
    run.best = {"q1": KeptQuery("a query", [other, row])}
    (case,) = build_cases([run])["cases"]  # of queries whose documents were kept
    assert (case["query"], case["text"], case["title"]) == ("q1", "a query", "Title")
    first, second = case["best"]["0"]
    assert (first["score"], second["score"]) == (7.0, run.score(("q1", "d1"))) and second["gold"]
    assert second["shares"] == [["n gram", 2.0]] and second["others"] == [3, 5.0]
    view = case["views"]["0"]
    assert view["score"] == run.score(("q1", "d1")) != view["pair_score"]
    run.names = SCORE_NAMES["T5SEAL"]
    (system,) = build_cases([run])["systems"]
    assert list(system["kinds"]) == ["evidence", "leak-free score"]
    assert system["parts"][1] == "n-gram key"


def test_weights_of_both_signs_have_zero_in_the_middle():
    weights = torch.tensor([[[-3.0, 0.0], [1.0, 2.0]], [[0.0, 0.0], [0.5, 4.0]]])
    packed = pack_matrices(weights, signed=True)
    found = unpacked({"weights": {"x": packed}}, "x", 2, 2)
    assert torch.allclose(found, weights, atol=4 / 127 / 2 + 1e-5)
    assert found[0, 0, 1].abs() < 1e-5 and found[1, 0].abs().max() < 1e-5


def test_weights_are_kept_to_a_step_of_their_range():
    weights = torch.rand(3, 7, 5, generator=torch.Generator().manual_seed(0)) / 100 + 0.5
    weights[1] = 0.25
    found = unpacked({"weights": {"x": pack_matrices(weights)}}, "x", 7, 5)
    assert torch.allclose(found, weights, atol=0.01 / 255)


@pytest.mark.parametrize(
    ("strings", "number", "text", "begins"),
    [
        (["▁the", "re"], 0, "the", True),
        (["▁the", "re"], 1, "re", False),
        (["▁the", "▁"], 1, "▁", True),
        (["play", "##ing"], 1, "ing", False),
        (["play", "##ing"], 0, "play", True),
        (["Ġthe", "re"], 1, "re", False),
        (["the", "re"], 1, "re", True),  # a tokeniser of words marks nothing
        (["▁the", "#17"], 1, "#17", True),
    ],
)
def test_what_a_token_reads_as(strings, number, text, begins):
    token = TokenStrings(dict(enumerate(strings)), frozenset()).token(number)
    assert (token["text"], token["begins"]) == (text, begins)


def test_the_vocabulary_holds_the_tokens_of_the_store(tmp_path, make_explanation):
    explanation = make_explanation(2, layers=1)
    run = stored(tmp_path / "run/alignments", explanation, "generative", [1, 1])
    pairs = explanation.layers[0]
    ids = {*pairs.document_ids[pairs.document_mask].tolist()}
    ids |= {*pairs.query_ids[pairs.query_mask].tolist()}
    some = min(ids)
    write_vocabulary(run.store, lambda found: [f"t{n}" for n in found], [some, 999])
    read = read_vocabulary(tmp_path / "run/alignments")
    assert read.strings == {n: f"t{n}" for n in ids} and read.special == {some}
    (tmp_path / "run/alignments/vocabulary.json").write_text('{"tokens": 3}')
    with pytest.raises(ValueError, match="vocabulary.json: not a vocabulary"):
        read_vocabulary(tmp_path / "run/alignments")
    (tmp_path / "run/alignments/vocabulary.json").unlink()
    with pytest.raises(FileNotFoundError, match=f"analysis.run run={tmp_path}/run"):
        read_vocabulary(tmp_path / "run/alignments")


def test_no_text_ends_its_script():
    text = embed_json({"token": "</script><!--"})
    assert "<" not in text and json.loads(text) == {"token": "</script><!--"}

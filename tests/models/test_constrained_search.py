"""Laws of search by generation: what scores are made of, opened indexes, narrowed searches."""

import pytest
import torch

from models.generative import list_continuations, trace_search

# Titles and pseudo-queries besides the body: full SEAL is the case without the latter.
SPECIAL_TOKENS = {"body": [50], "title": [51, 52], "title_end": [53]}
SPECIAL_TOKENS |= {"query": [51, 54], "query_end": [53]}
MINDER = dict(special_tokens=SPECIAL_TOKENS, query_ngrams=3, bonus={"title": 9.0, "query": 9.0})
QUERIES = [[[9, 8], [17, 5, 6]], [[30]], [], [[5, 6, 7, 8, 9]], [], [[9], [8, 8]], [], [[6, 30]]]
# Small collections make n-grams frequent: the smoothing leaves them some weight.
KINDS = ["semantic-pawa", "titles-np", "seal-minder"]


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param == "semantic-pawa":
        pytest.importorskip("sklearn")
    return request.param


@pytest.fixture
def documents(tools):
    table = tools.named_documents()
    table["tokens"] = [[4 + token % 40 for token in tokens] for tokens in table["tokens"]]
    table["query_tokens"] = QUERIES
    return table


@pytest.fixture
def make(tools, documents):
    """A system of a kind; two of a kind have the same weights."""

    def build(kind, **options):
        if kind.startswith("seal"):
            return tools.sharpen(tools.make_seal(**(MINDER if "minder" in kind else {}), **options))
        options = dict(length_penalty=0.8, beam_size=3) | options
        return tools.make_docid(kind, documents=documents, **options)

    return build


def indexed(system, documents, directory=None):
    system.index(documents, directory)
    return system


def answers(system, *asked):
    """The ranking of a search and the shares of its scores, to be compared as a whole."""
    ranking = system.retrieve(*asked, with_shares=True)
    return ranking, ranking.shares


def make_all_else_rare(documents):
    """n-grams that the corpus makes improbable weigh something, whatever the query makes them."""
    documents["tokens"][0] = [44] * 20_000


def test_shares_sum_to_the_scores_of_the_search(make, kind, documents, queries):
    system = indexed(make(kind), documents)
    ranking = system.retrieve(queries, 4, with_shares=True)
    shares = ranking.shares
    assert ranking == system.retrieve(queries, 4)
    assert list(shares) == queries["id"]
    for query in queries["id"]:
        scores = ranking.scores(query)
        assert list(shares[query]) == list(scores) and len(scores) > 1
        for document, score in scores.items():
            values = [share.value for share in shares[query][document]]
            assert sum(values) == pytest.approx(score, abs=1e-9) and len(values) > 0


def test_a_docids_shares_are_its_tokens_log_probabilities(make, kind, documents, queries):
    if kind.startswith("seal"):
        return
    system = indexed(make(kind), documents)
    shares = system.retrieve(queries, 8, with_shares=True).shares
    for query, tokens in zip(queries["id"], queries["tokens"], strict=True):
        for document, parts in shares[query].items():
            identifier = system.identifiers.sequences[documents["id"].index(document)]
            assert [share.tokens for share in parts] == [(token,) for token in identifier]
            scale = len(identifier) ** 0.8
            seen = 0.0
            for length, share in enumerate(parts, start=1):
                prefix = identifier[:length]
                seen += share.value * scale
                assert seen == pytest.approx(log_prob(system, tokens, prefix), abs=1e-6)


@torch.no_grad()
def log_prob(system, query, prefix):
    """log p(prefix | query), decoded step by step."""
    ids = torch.tensor([system.prepare_query(query)])
    step, total, last = system.decoding_step(ids, ids >= 0), 0.0, 0
    for token in prefix:
        total += step(torch.tensor([last]), torch.tensor([0]))[:][0, token].item()
        last = token
    return total


def test_seals_shares_are_keys_that_occur_in_the_document(make, documents, queries):
    make_all_else_rare(documents)
    system = indexed(make("seal-minder"), documents)
    shares = system.retrieve(queries, 8, with_shares=True).shares
    whole, views = (
        {"title": documents["title_tokens"], "query": [q for own in QUERIES for q in own]},
        set(),
    )
    for parts in shares.values():
        for document, found in parts.items():
            text = system.names.corpus.sequence(documents["id"].index(document)).tolist()
            for tokens, value, view, _ in found:
                places = range(len(text) - len(tokens) + 1)
                assert value > 0 and any(text[p : p + len(tokens)] == [*tokens] for p in places)
                assert view == "body" or [*tokens[:-1]] in whole[view]
                views.add(view)
            values = [share.value for share in found]
            assert values == sorted(values, reverse=True)
    assert views == {"body", "title", "query"}


# An index that is opened ------------------------------------------------------------------------


def test_an_opened_index_searches_as_the_built_one(make, kind, documents, queries, tmp_path):
    built = indexed(make(kind), documents, tmp_path / "index")
    opened = make(kind)
    index = opened.open_index(documents, tmp_path / "index")
    names = opened.names
    assert index is names.constraint and type(names) is type(built.names)
    assert answers(opened, queries, 5) == answers(built, queries, 5)
    assert answers(opened, queries, 5, ["d1", "d4"]) == answers(built, queries, 5, ["d1", "d4"])


def test_documents_that_came_after_training_are_in_the_opened_index(
    make, documents, queries, tmp_path
):
    system = indexed(make("titles-np", known=range(5)), documents, tmp_path)
    opened = make("titles-np", known=range(5))
    assert not opened.covers(6)
    opened.open_index(documents, tmp_path)
    assert opened.covers(6) and opened.retrieve(queries, 8) == system.retrieve(queries, 8)


def test_an_index_of_other_documents_is_refused(make, kind, documents, tmp_path):
    indexed(make(kind), documents, tmp_path)
    if kind.startswith("seal"):
        documents["tokens"][2] = [*documents["tokens"][2], 7]
        message = "must be an index of these documents"
    else:
        documents["id"][2] = "other"
        message = "must be of"
    system = make(kind)
    with pytest.raises(ValueError, match=message) as caught:
        system.open_index(documents, tmp_path)
    assert "\n" not in str(caught.value) and system.names is None


def test_an_index_of_another_models_identifiers_is_refused(make, tools, documents, tmp_path):
    indexed(make("titles-np"), documents, tmp_path)
    with pytest.raises(ValueError, match="must be an index of this model"):
        make("naive").open_index(documents, tmp_path)


def test_no_index_and_a_damaged_one_are_refused(make, kind, documents, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        make(kind).open_index(documents, tmp_path / "nowhere")
    indexed(make(kind), documents, tmp_path)
    for path in [p for p in tmp_path.rglob("*.npy") if "scheme" not in p.parts]:
        content = path.read_bytes()
        path.write_bytes(content[:-3] + b"abc")
        with pytest.raises(ValueError, match="is damaged"):
            make(kind).open_index(documents, tmp_path)
        path.write_bytes(content)


# A search that is narrowed ----------------------------------------------------------------------


def test_among_one_document_finds_it_with_its_score(make, kind, documents, queries):
    if kind.startswith("seal"):
        make_all_else_rare(documents)
    system = indexed(make(kind), documents)
    everything = indexed(make(kind, beam_size=60), documents).retrieve(queries, 8)
    for name in documents["id"][1:]:
        ranking = system.retrieve(queries, 8, [name])
        for query in queries["id"]:
            assert ranking.documents(query) == [name]
            if not kind.startswith("seal"):  # SEAL generates other keys
                expected = everything.scores(query)[name]
                assert ranking.scores(query)[name] == pytest.approx(expected, abs=1e-9)


def test_among_none_and_among_the_unknown(make, kind, documents, queries):
    system = indexed(make(kind), documents)
    ranking = system.retrieve(queries, 8, [], with_shares=True)
    shares = ranking.shares
    assert ranking.query_ids == queries["id"] and not any(map(ranking.documents, queries["id"]))
    assert shares == {query: {} for query in queries["id"]}
    with pytest.raises(ValueError, match="among: 'd99' must be the id of an indexed document"):
        answers(system, queries, 8, ["d1", "d99"])
    with pytest.raises(ValueError, match="index the documents first"):
        make(kind).retrieve(queries, 8)


# The shares of given pairs ----------------------------------------------------------------------


@torch.no_grad()
def test_shares_of_pairs_sum_to_their_scores(make, kind, tools, documents, queries):
    system = indexed(make(kind), documents)
    for query in queries["tokens"]:
        batch = tools.pairs_of(system, query, range(8))
        if kind.startswith("seal"):
            batch.document_ids, batch.document_mask = (
                tools.make_batch((1,) * 8, (9, 1, 4, 5, 3, 2, 12, 8)).document_ids,
                tools.make_batch((1,) * 8, (9, 1, 4, 5, 3, 2, 12, 8)).document_mask,
            )
        scores = system.score(batch).tolist()
        for score, shares in zip(scores, system.shares(batch), strict=True):
            values = [share.value for share in shares]
            if not shares:  # a text without tokens
                assert score == -torch.inf and kind.startswith("seal")
            else:
                assert sum(values) == pytest.approx(score, abs=1e-9)


# What a search did ------------------------------------------------------------------------------


def test_the_path_of_a_search_is_that_of_its_results(make, kind, documents, queries):
    system = indexed(make(kind), documents)
    lost = 0
    for query in queries["tokens"]:
        result = system.search([query])
        final = result.final.of(0)
        for document in range(8):
            path = trace_search(system, query, document)
            assert [(list(one.tokens), one.log_prob) for one in path.generated] == final
            named = {name for one in path.generated for name in one.documents}
            assert (f"d{document}" in named) == (path.lost is None)
            lost += path.lost is not None
            kept = {one.tokens: one.log_prob for step in path.steps for one in step.kept}
            keys = {tuple(tokens): value for tokens, value in result.candidates.of(0)}
            assert kept.items() <= keys.items()
            for step in path.steps:
                if step.best is not None:
                    expected = log_prob(system, query, step.best.tokens)
                    assert step.best.log_prob == pytest.approx(expected, abs=1e-6)
    assert lost


@pytest.mark.parametrize("kind", ["titles-np", "seal"])
def test_what_the_model_would_write_next(make, kind, documents, queries):
    system, query = indexed(make(kind), documents), queries["tokens"][0]
    path, names = trace_search(system, query, 1), system.names
    best = path.generated[0].tokens
    for length in range(len(best)):
        prefix = list(best[:length])
        found = list_continuations(system, query, prefix, k=99)
        following = next(one for one in found if one.token == best[length])
        assert following.allowed and following.n_documents >= path.generated[0].n_documents
        for one in found:
            tokens = [*prefix, one.token]
            expected = log_prob(system, query, tokens) - log_prob(system, query, prefix)
            assert one.probability == pytest.approx(torch.tensor(expected).exp().item())
            reached = {f"d{n}" for n in range(8) if tuple(tokens) in names.gold_prefixes(n)}
            assert one.allowed == (one.n_documents > 0)
            # The end token alone is every text's, and nobody's n-gram.
            assert set(one.documents) == reached or tokens == [1]
        values = [one.probability for one in found]
        assert values == sorted(values, reverse=True)
        assert sum(values) == pytest.approx(1), "all tokens that have a row in the output table"
    few = list_continuations(system, query, k=1)
    assert sum(one.allowed for one in few) == 1 and len(few) <= 2
    assert list_continuations(system, query, best) == []


def test_what_has_no_path_says_so(make, kind, documents, queries, tools):
    system, query = indexed(make(kind), documents), queries["tokens"][0]
    with pytest.raises(ValueError, match=r"prefix=\[3\]: must be one that a search can generate"):
        list_continuations(system, query, [3])
    if kind.startswith("seal"):
        documents["tokens"][2] = []
        system.index(documents)
    else:
        system.identifiers.sequences[2] = []
    with pytest.raises(ValueError, match="'d2' has no identifier: no search can find it"):
        trace_search(system, query, 2)

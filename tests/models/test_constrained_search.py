"""Laws of search by generation: opened indexes, narrowed searches, what is refused."""

import pytest

# Titles and pseudo-queries besides the body: full SEAL is the case without the latter.
SPECIAL_TOKENS = {"body": [50], "title": [51, 52], "title_end": [53]}
SPECIAL_TOKENS |= {"query": [51, 54], "query_end": [53]}
MINDER = dict(special_tokens=SPECIAL_TOKENS, query_ngrams=3, bonus={"title": 9.0, "query": 9.0})
QUERIES = [[[9, 8], [17, 5, 6]], [[30]], [], [[5, 6, 7, 8, 9]], [], [[9], [8, 8]], [], [[6, 30]]]
# Small collections make n-grams frequent: the smoothing leaves them some weight.
KINDS = ["semantic-pawa", "titles-np", "seal-minder"]


@pytest.fixture(params=KINDS)
def kind(request):
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


def make_all_else_rare(documents):
    """n-grams that the corpus makes improbable weigh something, whatever the query makes them."""
    documents["tokens"][0] = [44] * 20_000


# An index that is opened ------------------------------------------------------------------------


def test_an_index_of_another_models_identifiers_is_refused(make, documents, tmp_path):
    indexed(make("titles-np"), documents, tmp_path)
    with pytest.raises(ValueError, match="must be an index of this model"):
        make("naive").open_index(documents, tmp_path)


def test_no_index_and_a_damaged_one_are_refused(make, kind, documents, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        make(kind).open_index(documents, tmp_path / "nowhere")
    indexed(make(kind), documents, tmp_path)
    for path in [p for p in tmp_path.rglob("*.safetensors") if "scheme" not in p.name]:
        content = path.read_bytes()
        path.write_bytes(content[:-3])
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
        system.retrieve(queries, 8, ["d1", "d99"])
    with pytest.raises(ValueError, match="index the documents first"):
        make(kind).retrieve(queries, 8)


# What a search did ------------------------------------------------------------------------------


def test_what_has_no_path_says_so(make, kind, documents, queries, tools):
    system, query = indexed(make(kind), documents), queries["tokens"][0]
    with pytest.raises(ValueError, match=r"prefix=\[3\]: must be one that a search can generate"):
        system.list_continuations(query, [3])
    if kind.startswith("seal"):
        documents["tokens"][2] = []
        system.index(documents)
    else:
        system.identifiers.sequences[2] = []
    with pytest.raises(ValueError, match="'d2' has no identifier: no search can find it"):
        system.trace_search(query, 2)

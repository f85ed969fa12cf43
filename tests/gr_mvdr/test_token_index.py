import pytest
import torch

from gr_mvdr import token_index
from gr_mvdr.alignment import MaxSim, Softmax
from gr_mvdr.max_sim import all_pairs_relevance
from gr_mvdr.relevance import relevance, similarity
from gr_mvdr.token_index import TokenIndex

LENGTHS = [4, 1, 6, 6, 2, 5, 1, 3]  # out of order, neighbours equal
STRATEGIES = [MaxSim("query_to_document"), MaxSim("document_to_query"), Softmax()]


def unit_vectors(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def packed(lengths=LENGTHS, size=8, seed=0):
    return unit_vectors(sum(lengths), size, seed=seed)


def build(directory, lengths=LENGTHS, batch=3, dtype="float32", seed=0):
    vectors, counts = packed(lengths, seed=seed), torch.tensor(lengths)
    counts = counts.split(batch)
    batches = zip(vectors.split([int(c.sum()) for c in counts]), counts, strict=True)
    return TokenIndex.build(directory, [f"d{n}" for n in range(len(lengths))], batches, dtype)


def padded(lengths=LENGTHS, seed=0):
    documents = packed(lengths, seed=seed).split(lengths)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.nn.utils.rnn.pad_sequence(documents, batch_first=True), mask


@pytest.fixture
def queries():
    """(3, 4, 8) query vectors, zero at padding, and their mask."""
    mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    return unit_vectors(3, 4, 8, seed=9) * mask.unsqueeze(-1), mask


@pytest.mark.parametrize("block", [1, 7, 10_000])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_exact_search_equals_the_padded_product_whatever_the_chunks(
    tmp_path, queries, monkeypatch, block, batch
):
    monkeypatch.setattr(token_index, "_BLOCK_SIMILARITIES", block)
    index = build(tmp_path / "index", batch=batch)
    documents, document_mask = padded()
    expected = all_pairs_relevance(documents, document_mask, *queries)
    assert torch.allclose(index.exact(queries[0]), expected, atol=1e-5)


def test_blocks_are_whole_documents_and_no_larger_than_asked(tmp_path):
    index = build(tmp_path / "index")
    blocks = [(d.start, d.stop, r.start, r.stop) for d, r in index._blocks(7)]
    # Lengths 4 1 | 6 | 6 | 2 5 | 1 3, each block as full as 7 tokens allow.
    assert blocks == [(0, 2, 0, 5), (2, 3, 5, 11), (3, 4, 11, 17), (4, 6, 17, 24), (6, 8, 24, 28)]
    assert [d.stop - d.start for d, _ in index._blocks(1)] == [1] * 8


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("normalise", [False, True])
def test_gather_and_score_equals_the_dense_equation_in_the_order_asked(
    tmp_path, queries, strategy, normalise
):
    index = build(tmp_path / "index")
    query = queries[0][0]
    numbers = torch.tensor([6, 2, 0, 5, 3, 4])
    scores = index.score(query, numbers, strategy, normalise)
    documents, mask = padded()
    matrix = similarity(documents[numbers], query)
    aligned = strategy(matrix, mask[numbers], torch.ones(len(numbers), 4, dtype=torch.bool))
    assert torch.allclose(scores, relevance(matrix, aligned, normalise), atol=1e-5)


def test_scoring_no_document_gives_no_score(tmp_path, queries):
    none = torch.empty(0, dtype=torch.int64)
    assert build(tmp_path / "index").score(queries[0][0], none, MaxSim()).shape == (0,)


def test_half_precision_storage_halves_the_file_and_stays_close(tmp_path, queries):
    full, half = build(tmp_path / "full"), build(tmp_path / "half", dtype="float16")
    sizes = [(index.directory / "vectors.bin").stat().st_size for index in (full, half)]
    assert sizes[0] == 2 * sizes[1] == sum(LENGTHS) * 8 * 4
    assert torch.allclose(full.exact(queries[0]), half.exact(queries[0]), atol=5e-3)
    assert half.exact(queries[0]).dtype == torch.float32
    numbers = torch.arange(8)
    scores = [index.score(queries[0][0], numbers, MaxSim()) for index in (full, half)]
    assert torch.allclose(*scores, atol=5e-3)


def test_an_index_opens_again_as_it_was_written(tmp_path, queries):
    built = build(tmp_path / "index")
    opened = TokenIndex(tmp_path / "index")
    assert opened.document_ids == [f"d{n}" for n in range(8)] and len(opened) == 8
    assert opened.lengths.tolist() == LENGTHS
    assert torch.equal(opened.exact(queries[0]), built.exact(queries[0]))
    files = [path.stat().st_size for path in (tmp_path / "index").iterdir()]
    assert opened.size_in_bytes == sum(files)


MANY = [1 + n % 5 for n in range(40)]


def test_all_probes_and_many_neighbours_reach_every_document(tmp_path, queries):
    pytest.importorskip("faiss")
    index = build(tmp_path / "index", MANY)
    index.build_neighbours(lists=3)
    query = queries[0][0]
    found = index.candidates(query, neighbours=sum(MANY), probes=3)
    assert found.tolist() == list(range(40))
    scores = index.score(query, found, MaxSim())
    assert torch.allclose(scores, index.exact(query[None])[:, 0], atol=1e-5)


def test_candidates_own_the_nearest_tokens(tmp_path, queries):
    pytest.importorskip("faiss")
    index = build(tmp_path / "index", MANY)
    index.build_neighbours(lists=1)
    query = queries[0][0]
    owner = torch.arange(40).repeat_interleave(torch.tensor(MANY))
    nearest = (packed(MANY) @ query.T).topk(2, dim=0).indices
    found = TokenIndex(tmp_path / "index").candidates(query, neighbours=2, probes=1)
    assert found.tolist() == owner[nearest].unique().tolist()


def test_short_result_lists_add_no_document(tmp_path):
    """faiss answers −1 where a probed cluster has too few tokens: that is no document."""
    pytest.importorskip("faiss")
    axis = torch.eye(8)
    near, far = axis[[0]].repeat(60, 1), axis[[1]].repeat(60, 1)
    vectors = torch.cat([near, far]) + 0.01 * unit_vectors(120, 8)
    lengths = torch.full((12,), 10)
    index = TokenIndex.build(tmp_path / "index", [str(n) for n in range(12)], [(vectors, lengths)])
    index.build_neighbours(lists=2)
    found = index.candidates(axis[[1]], neighbours=100, probes=1)
    assert found.tolist() == [6, 7, 8, 9, 10, 11]
    found = index.candidates(axis[[0]], neighbours=100, probes=1)
    assert found.tolist() == [0, 1, 2, 3, 4, 5]


def test_neighbours_are_the_same_for_the_same_seed(tmp_path):
    pytest.importorskip("faiss")
    files = []
    for name in ("one", "two"):
        index = build(tmp_path / name, MANY)
        index.build_neighbours(lists=3, seed=5)
        files.append((index.directory / "ivf.faiss").read_bytes())
    assert files[0] == files[1]


def test_a_folder_without_an_index_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no token index there"):
        TokenIndex(tmp_path)


@pytest.mark.parametrize("change", [-4, 4])
def test_a_file_of_the_wrong_size_is_refused(tmp_path, change):
    build(tmp_path / "index")
    path = tmp_path / "index" / "vectors.bin"
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + b"\0" * change)
    with pytest.raises(ValueError, match=rf"{len(data) + change} bytes, expected {len(data)}"):
        TokenIndex(tmp_path / "index")


def test_a_half_written_index_never_replaces_a_good_one(tmp_path, queries):
    good = build(tmp_path / "index").exact(queries[0])

    def interrupted():
        yield packed()[:5], torch.tensor([4, 1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TokenIndex.build(tmp_path / "index", ["a", "b", "c"], interrupted())
    with pytest.raises(ValueError, match="3 ids but 2 documents"):
        counted = [(packed()[:5], torch.tensor([4, 1]))]
        TokenIndex.build(tmp_path / "index", ["a", "b", "c"], counted)
    assert torch.equal(TokenIndex(tmp_path / "index").exact(queries[0]), good)
    assert [path.name for path in tmp_path.iterdir()] == ["index"], "nothing half-written remains"


def test_a_new_index_replaces_the_old_one_and_its_neighbours(tmp_path, queries):
    pytest.importorskip("faiss")
    build(tmp_path / "index", MANY).build_neighbours()
    index = build(tmp_path / "index", seed=3)
    assert not (tmp_path / "index" / "ivf.faiss").exists()
    documents, document_mask = padded(seed=3)
    expected = all_pairs_relevance(documents, document_mask, *queries)
    assert torch.allclose(index.exact(queries[0]), expected, atol=1e-5)

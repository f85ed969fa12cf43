import numpy as np
import pytest
from datasets import Dataset

from gr_mvdr.identifiers.document_embeddings import FileEmbeddings, TfidfSvd


def test_all_dimensions_keep_tf_idfs_cosines():
    """Without reduction the SVD is a rotation. The weights here are worked out by hand."""
    table, embeddings = Dataset.from_dict({"text": ["a b", "a a c", "d d d"]}), TfidfSvd(50)
    embeddings.fit(table)
    embedded = embeddings.transform(table)
    a, once = 1 + np.log(4 / 3), 1 + np.log(4 / 2)  # idf = 1 + ln((1 + N) / (1 + df))
    first, second = np.array([a, once, 0]), np.array([(1 + np.log(2)) * a, 0, once])
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    expected = np.array([[1, cosine, 0], [cosine, 1, 0], [0, 0, 1]])
    assert np.allclose(embedded @ embedded.T, expected, atol=1e-5)


VECTORS = np.array([[3, 4], [0, -2], [1, 0]], np.float64)
IDS = ["a", "b", "c"]


def write_vectors(file, ids=IDS, vectors=VECTORS):
    if file.suffix == ".npy":
        np.save(file, vectors)
        file.with_suffix(".txt").write_text("\n".join(ids))
    else:
        Dataset.from_dict({"id": ids, "vector": list(map(list, vectors))}).to_parquet(file)
    return file


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_vectors_of_a_file_are_found_by_id(kind, tmp_path):
    file = write_vectors(tmp_path / f"items.{kind}")
    embedded = FileEmbeddings(str(file)).transform(Dataset.from_dict({"id": ["c", "a"]}))
    assert embedded.dtype == np.float32
    assert np.allclose(embedded, [[1, 0], [0.6, 0.8]], atol=1e-7)


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_file_without_every_vector_is_refused(kind, tmp_path):
    file = tmp_path / f"items.{kind}"
    faults = [
        (dict(ids=["a", "b", "x"]), "must hold a vector of every document, 1 have none, such as"),
        (dict(ids=["a", "b", "b"]), "must name each document once"),
        (dict(vectors=VECTORS * np.nan), "must hold finite numbers"),
        (dict(vectors=np.array([["a"] * 2] * 3)), "could not convert string"),
    ]
    if kind == "npy":
        faults.append((dict(ids=["a", "b"]), "must hold one vector an id, holds 2 ids"))
    for content, message in faults:
        write_vectors(file, **content)
        with pytest.raises(ValueError, match=rf"embeddings=.*items\.{kind}: {message}"):
            FileEmbeddings(str(file)).transform(Dataset.from_dict({"id": IDS}))
    file.write_bytes(b"no table")
    with pytest.raises(ValueError, match=rf"embeddings=.*items\.{kind}: "):
        FileEmbeddings(str(file)).transform(Dataset.from_dict({"id": IDS}))

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from data_modules.tokenisation import train_tokenizer
from gr_mvdr.identifiers.document_embeddings import (
    FileEmbeddings,
    HuggingFaceEncoder,
    TfidfSvd,
)

TEXTS = [
    "the cat sat on the mat",
    "a cat, a dog, the mat",
    "stars, planets and moon",
    "moon and no planets",
    "bread, butter, cheese",
    "cheese with bread or butter",
]


def table(texts=TEXTS):
    tokens = [[3 + len(word) for word in text.split()] for text in texts]
    return Dataset.from_dict({"text": texts, "tokens": tokens})


def fitted(texts=TEXTS, dimension=4):
    pytest.importorskip("sklearn")
    embeddings = TfidfSvd(dimension)
    embeddings.fit(table(texts))
    return embeddings


def test_all_dimensions_keep_tf_idfs_cosines():
    """Without reduction the SVD is a rotation. The weights here are worked out by hand."""
    texts = ["a b", "a a c", "d d d"]
    embedded = fitted(texts, 50).transform(table(texts))
    a, once = 1 + np.log(4 / 3), 1 + np.log(4 / 2)  # idf = 1 + ln((1 + N) / (1 + df))
    first, second = np.array([a, once, 0]), np.array([(1 + np.log(2)) * a, 0, once])
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    expected = np.array([[1, cosine, 0], [cosine, 1, 0], [0, 0, 1]])
    assert np.allclose(embedded @ embedded.T, expected, atol=1e-5)


SHAPE = dict(vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)


@pytest.fixture(params=["t5", "bert"])
def folder(request, tmp_path):
    """A random model with a tokeniser in a folder, as the hub has them."""
    torch.manual_seed(0)
    models = {
        "t5": lambda: T5ForConditionalGeneration(T5Config(**SHAPE, decoder_start_token_id=0)),
        "bert": lambda: BertModel(
            BertConfig(
                vocab_size=60,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=24,
            )
        ),
    }
    models[request.param]().save_pretrained(tmp_path)
    train_tokenizer(TEXTS * 5, 60).save_pretrained(tmp_path)
    return tmp_path


def by_hand(folder, text, length):
    """The mean of the encoder's vectors of one text, without padding."""
    from transformers import AutoModelForTextEncoding, AutoTokenizer

    encoder = AutoModelForTextEncoding.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"][:length]
    with torch.no_grad():
        mean = encoder(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
    return (mean / mean.norm()).numpy()


def test_a_hub_encoder_gives_the_mean_over_real_tokens(folder):
    embedded = HuggingFaceEncoder(str(folder), 7, batch_size=4).transform(table())
    assert embedded.shape == (6, 16) and embedded.dtype == np.float32
    for text, vector in zip(TEXTS, embedded, strict=True):
        assert np.allclose(vector, by_hand(folder, text, 7), atol=1e-5)


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
        (dict(vectors=VECTORS * np.nan), "must hold finite numbers"),
        (dict(vectors=np.array([["a"] * 2] * 3)), "could not convert string"),
    ]
    for content, message in faults:
        write_vectors(file, **content)
        with pytest.raises(ValueError, match=rf"embeddings=.*items\.{kind}: {message}"):
            FileEmbeddings(str(file)).transform(Dataset.from_dict({"id": IDS}))
    file.write_bytes(b"no table")
    with pytest.raises(ValueError, match=rf"embeddings=.*items\.{kind}: "):
        FileEmbeddings(str(file)).transform(Dataset.from_dict({"id": IDS}))

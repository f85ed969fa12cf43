"""What one run of a recipe has to do, read from its configuration (for `analysis.recipes.cost`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.recipes.cost import SIZES, Work
from gr_mvdr.token_index.store import columns_of

WORD_TOKENS = 1.4  # T5's tokens an English word, assumed
IDENTIFIER_TOKENS = 6  # of a docid or a title, assumed
# gr_mvdr.token_index.neighbours holds of a token 4 bits for every two dimensions, and faiss's
# 64-bit id.
CODE_BYTES_A_DIMENSION, LIST_ID_BYTES = 1 / 4, 8


@dataclass(frozen=True)
class Corpus:
    """Documents, training pairs, and tokens a document where texts are shorter than the limit."""

    documents: int
    pairs: int = 0
    tokens: int | None = None


# gr_as_mvdr Table 4; MS MARCO's passages as facts and mva §3 have them (their training pairs play
# no part: steps are given); the BEIR sets as BEIR's own list has them.
CORPORA = {
    "nq320k": Corpus(109_739, 307_373),
    "msmarco_doc": Corpus(323_569, 366_235),
    "msmarco_passage": Corpus(8_800_000, tokens=70),
    "beir/arguana": Corpus(8_674),
    "beir/webis-touche2020": Corpus(382_545),
    "beir/fever": Corpus(5_416_568),
    "beir/climate-fever": Corpus(5_416_593),
    "beir/scifact": Corpus(5_183),
    "beir/trec-covid": Corpus(171_332),
    "beir/nfcorpus": Corpus(3_633),
    "beir/nq": Corpus(2_681_468),
    "beir/hotpotqa": Corpus(5_233_329),
    "beir/fiqa": Corpus(57_638),
    "beir/scidocs": Corpus(25_657),
    "beir/dbpedia-entity": Corpus(4_635_922),
    "beir/quora": Corpus(522_931),
}


def work(config: Mapping[str, Any], corpus: Corpus) -> Work | None:
    """The work of a run; None for one that has no encoder to train or to run (BM25, a pipeline).

    Args:
        config: resolved; corpus: of its data.
    """
    model, data = config["model"], config["data"]
    if "backbone" not in model:
        return None
    generative = "MultiVector" not in model["_target_"] and "Cross" not in model["_target_"]
    source, target = _tokens(config, generative)
    length = min(config["document_length"], corpus.tokens or config["document_length"])
    return Work(
        size=size_of(config["backbone"]["name"]),
        generative=generative,
        steps=0 if config["weights"] else _steps(config, corpus),
        batch=data["batch_size"],
        source=source,
        target=target,
        documents=0 if _only_reranks(model) else corpus.documents,
        document_length=_vectors(model, length),
        token_bytes=0 if generative else _token_bytes(model),
    )


def size_of(backbone: str) -> Any:
    """The size of a backbone by its name: google/t5-v1_1-base, google/mt5-base."""
    name = backbone.rpartition("/")[2]
    return SIZES[name if name in SIZES else name.rpartition("-")[2]]


def _tokens(config: Mapping[str, Any], generative: bool) -> tuple[int, int]:
    """Tokens of an example, at their longest: what the encoder reads, what the decoder writes."""
    examples = config["data"]["examples"]
    if "n_spans" in examples:
        target = examples["n_spans"] * examples["length"] * WORD_TOKENS
        return config["query_length"], round(target)
    if generative:
        ratio = (config["data"].get("indexing") or {}).get("ratio", 0)
        texts = config["query_length"] + ratio * config["document_length"]
        return round(texts), round((1 + ratio) * IDENTIFIER_TOKENS)
    negatives = (examples.get("negatives") or {}).get("n", 0)
    return config["query_length"] + (1 + negatives) * config["document_length"], 0


def _steps(config: Mapping[str, Any], corpus: Corpus) -> int:
    trainer = config["trainer"]
    if trainer["max_steps"] > 0:
        return trainer["max_steps"]
    return trainer["max_epochs"] * -(-corpus.pairs // config["data"]["batch_size"])


def _only_reranks(model: Mapping[str, Any]) -> bool:
    """Whether it keeps no document: a cross-encoder, mva."""
    return "Cross" in model["_target_"] or (model.get("search") or {}).get("mode") == "rerank"


def _vectors(model: Mapping[str, Any], length: int) -> int:
    """Vectors that a document keeps."""
    pooling = model.get("pooling")
    pooling = pooling["document"] if isinstance(pooling, dict) else {}
    return min(length, pooling.get("k", length)) // pooling.get("factor", 1)


def _token_bytes(model: Mapping[str, Any]) -> float:
    """Bytes on disk of a vector's row: the store's columns, and its place in the inverted file."""
    search = model.get("search")
    if search is None:
        return 0
    size = model["dimension"]
    names = ["vectors", *(["keys"] if model["projections"] == "attention" else [])]
    salience = (model.get("salience") or {}).get("document") is not None
    header = {"dtype": search["dtype"], "pq_bytes": search["pq_bytes"], "salience": salience}
    columns = columns_of(header | {"sizes": dict.fromkeys(names, size)})
    del columns["counts"]  # a row a document
    stored = sum(column.row_bytes for column in columns.values())
    if search["mode"] == "exact" or search["probes"] is None:
        return stored
    return stored + size * CODE_BYTES_A_DIMENSION + LIST_ID_BYTES

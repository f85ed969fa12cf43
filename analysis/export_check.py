"""Does sentence-transformers give an exported folder's scores? On texts of the run's own data."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Pairs of the first test split, and how far scores may lie apart.
PAIRS, TOLERANCE = 64, 1e-4


@torch.inference_mode()
def check_library(folder: Path, system: Any, data: Any) -> float:
    """Scores pairs of test query and relevant document, from their texts.

    Args:
        folder: the exported one; system: what was exported; data: a `RetrievalDataModule`.

    Returns:
        The largest difference.

    Raises:
        ValueError: the library cannot read such a system, is not installed, or differs by more
            than `TOLERANCE`.
    """
    if not (folder / "modules.json").is_file():
        raise ValueError("check=true: sentence-transformers cannot read this system, use false")
    try:
        from sentence_transformers import MultiVectorEncoder
    except ImportError:
        raise ValueError(
            "check=true: needs sentence-transformers ≥ 6: pip install 'gr-mvdr[export]'"
        ) from None
    ours, queries, documents = _scored_pairs(system, data)
    model = MultiVectorEncoder(str(folder), device="cpu")
    theirs = model.similarity_pairwise(
        model.encode_query(queries, show_progress_bar=False),
        model.encode_document(documents, show_progress_bar=False),
    )
    difference = float((theirs - ours).abs().max())
    if not difference <= TOLERANCE:  # nor NaN
        raise ValueError(
            f"check=true: sentence-transformers differs by {difference:.1e} from the run's scores, "
            f"must be ≤ {TOLERANCE:.0e}"
        )
    return difference


def _scored_pairs(system: Any, data: Any) -> tuple[Tensor, list[str], list[str]]:
    """(P,) the system's own scores, and the texts that it scored."""
    split = data.test_splits[0]
    names, batches = data.test_pairs(split, PAIRS)
    table = data.test_queries(split)
    queries = dict(zip(table["id"][:], table["text"][:], strict=True))
    rows = torch.cat([batch.document_index for batch in batches]).tolist()
    scores = torch.cat([system.score(batch) for batch in batches])
    return scores, [queries[query] for query, _ in names], data.documents[rows]["text"]

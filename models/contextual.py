"""Texts through a system's own encoder: document vectors, and NP decoding's contextual table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.distributed.ranks import gather_rows, slice_for_rank
from gr_mvdr.identifiers.scheme import collection_hash
from gr_mvdr.progress import track
from gr_mvdr.tokenizers import EOS_ID
from models.base import Table

# Texts encoded at once.
_BATCH = 64


@torch.inference_mode()
def encode_texts(
    system: Any, texts: Sequence[Sequence[int]], length: int, description: str = "encoding"
) -> Iterator[torch.Tensor]:
    """The encoder's vectors of each text, (tokens, d_model) fp32 on the CPU, end token included.

    Args:
        system: a `GenerativeSystem`; it encodes without dropout.
        texts: token ids; length: tokens kept of a text, the end token included.
    """
    was_training = system.training
    system.eval()
    for start in track(range(0, len(texts), _BATCH), description, total=-(-len(texts) // _BATCH)):
        rows = [cut(tokens, length, EOS_ID) for tokens in texts[start : start + _BATCH]]
        ids, mask = (x.to(system.device) for x in pad(rows))
        vectors = system.encode(ids, mask).float().cpu()
        yield from (row[real] for row, real in zip(vectors, mask.cpu(), strict=True))
    system.train(was_training)


def with_context(sequence: Sequence[int], text: Sequence[int]) -> list[int]:
    """What is encoded to read an identifier in its context: `title + ' ' + context` (facts: NP).

    Returns:
        Tokens that begin with the identifier's: the text itself if it begins so.
    """
    begins = list(text[: len(sequence)]) == list(sequence)
    return list(text) if begins else [*sequence, *text]


def build_table(system: Any, sequences: list[list[int]], documents: Table) -> None:
    """Makes the table of an NP head: the encoder's vectors of the sequences in their context.

    Args:
        system: with a `NonParametricHead`.
        sequences: of each document, what its targets are cut from; empty: not in the table.
        documents: with `id` and `tokens`.
    """
    length = system.hparams.document_length
    named, texts = _named_texts(sequences, documents["tokens"], length)
    encoded = encode_texts(system, texts, length, "contextual table")
    vectors = [found[: len(own)] for own, found in zip(named, encoded, strict=True)]
    system.head.build(named, torch.cat(vectors), collection=collection_hash(documents["id"][:]))


@contextmanager
def live_table(
    system: Any, sequences: list[list[int]], documents: Table, batch: PairBatch
) -> Iterator[None]:
    """The batch's own table, with gradients into the encoder (NP decoding, contrastive form).

    The documents are those of all ranks' batches: each encodes its share of them.

    Args:
        system, sequences, documents: as `build_table`; batch: with the targets.
    """
    index = gather_rows(batch.document_index).unique()
    length, rows = system.hparams.document_length, index.tolist()
    chosen = [sequences[row] for row in rows], documents[rows]["tokens"]
    named, texts = _named_texts(*chosen, length)
    vectors = gather_rows(_own_vectors(system, named, texts))
    with system.head.live(named, vectors, index):
        # Targets from beyond `document_length` have no contextual row.
        system.head.extend(gather_rows(batch.document_ids[batch.document_mask]).unique().tolist())
        yield


def _own_vectors(system: Any, named: list[list[int]], texts: list[list[int]]) -> torch.Tensor:
    """(n, d_model) fp32 of the named tokens, of this rank's share of the documents."""
    own = slice_for_rank(len(texts))
    # Without a share it encodes one text for nothing: every rank has to come back from it.
    mine, read = named[own] or [[]], texts[own] or texts[:1]
    ids, mask = pad([cut(text, system.hparams.document_length, EOS_ID) for text in read])
    vectors = system.encode(ids.to(system.device), mask.to(system.device))
    lengths = torch.tensor([len(tokens) for tokens in mine])
    named_tokens = torch.arange(ids.shape[1]) < lengths[:, None]
    return vectors[named_tokens.to(system.device)].float()


def _named_texts(
    sequences: Sequence[list[int]], texts: Sequence[list[int]], length: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Each sequence without its end token, and the text that begins with it."""
    named = [[t for t in sequence if t != EOS_ID][: length - 1] for sequence in sequences]
    pairs = zip(named, texts, strict=True)
    return named, [with_context(own, text) if own else [] for own, text in pairs]

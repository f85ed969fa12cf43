"""The batch of all ranks: what one process would have read at once."""

from collections.abc import Sequence

import torch

from gr_mvdr.batch import PairBatch
from gr_mvdr.distributed.ranks import gather, world_size


def whole_batch(batch: PairBatch) -> PairBatch:
    """The parts of all ranks as one batch, the same on every rank.

    Token ids alone are sent. The dear part, the encoding, can be shared out again afterwards: a
    document that is in several parts is encoded once, and every loss and alignment that looks at
    its batch mates sees all of them.

    Args:
        batch: this rank's part, at least one pair.
    """
    if world_size() == 1:
        return batch
    found = {name: gather(value) for name, value in vars(batch).items() if value is not None}
    parts = zip(*found.values(), strict=True)
    return assembled([PairBatch(**dict(zip(found, part, strict=True))) for part in parts])


def assembled(parts: Sequence[PairBatch]) -> PairBatch:
    """Neighbouring parts of a batch, put together as the data would have made the batch.

    The positives of all parts come first, then the hard negatives, each document once.

    Args:
        parts: all padded to the same lengths.
    """
    every = {
        name: torch.cat([vars(part)[name] for part in parts])
        for name, value in vars(parts[0]).items()
        if value is not None
    }
    sizes = torch.tensor([len(part.document_ids) for part in parts])
    starts = (sizes.cumsum(0) - sizes).tolist()
    numbered = list(zip(starts, parts, strict=True))
    places = [start + row for start, part in numbered for row in range(len(part))]
    if "negatives" in every:
        given = torch.cat([start + part.negatives for start, part in numbered])
        rows = _append_negatives(places, given.flatten().tolist(), every["document_index"].tolist())
        every["negatives"] = torch.tensor(rows, device=given.device).view_as(given)
    chosen = torch.tensor(places, device=every["document_ids"].device)
    documents = {name: every[name][chosen] for name in every if name.startswith("document")}
    return PairBatch(**every | documents)


def _append_negatives(places: list[int], given: list[int], index: list[int]) -> list[int]:
    """Appends those hard negatives to the batch's documents that are not among them.

    Args:
        places: of the positives in `index`, which grows; given: places of the negatives.
        index: document numbers.

    Returns:
        Each negative's row among `places`.
    """
    row_of = {index[place]: row for row, place in enumerate(places)}
    for place in given:
        if index[place] not in row_of:
            row_of[index[place]] = len(places)
            places.append(place)
    return [row_of[index[place]] for place in given]

"""Non-parametric decoding: contextual token vectors as the output table (gr_as_mvdr Eq. 20).

The rows D in rel(d, q) = sum(Dᵀ Q ⊙ A) are hidden states of an encoder that reads the documents; a
surface token has a few rows. They are both the decoder's inputs and its output table.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from gr_mvdr.backbones import encode, encode_texts
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.heads.plain import TableHead, Vocabulary
from gr_mvdr.identifiers.scheme import hash_collection
from gr_mvdr.options import Seed, Size, part
from gr_mvdr.ranks import broadcast, gather_rows, slice_for_rank, world_size
from gr_mvdr.template import TextTemplate

# The tensors of a table: its rows (R, d), their tokens (R,), and their occurrences in documents:
# the documents' numbers (D,) ascending, the bounds of their tokens (D + 1,), the tokens (n,) of one
# document after the other, and the row (n,) of each token.
_TENSORS = ("table", "row_tokens", "documents", "starts", "tokens", "rows")


def locate(
    sequences: Sequence[Sequence[int]], rows: Tensor, documents: Tensor | None = None
) -> dict[str, Tensor]:
    """Returns the occurrences of rows in documents: the tensors of `_TENSORS` from `documents` on.

    Args:
        sequences: the tokens of each document.
        rows: (n,) int64, the row of each token.
        documents: (D,) int64, the documents' numbers, distinct and ascending; None = 0, 1, 2, ….
    """
    lengths = torch.tensor([0, *map(len, sequences)], device=rows.device)
    tokens = torch.tensor([*chain.from_iterable(sequences)], dtype=torch.int64, device=rows.device)
    assert len(tokens) == len(rows), "a row for every token"
    if documents is None:
        documents = torch.arange(len(sequences), device=rows.device)
    return dict(documents=documents, starts=lengths.cumsum(0), tokens=tokens, rows=rows)


@part("head")
class NonParametricHead(TableHead):
    """A table of contextual token vectors, at most `clusters` for each surface token (Eq. 20).

    Its rows are not parameters: they get a gradient only inside `batch_table`. The table has to be
    made (`make_table`) or restored (`renew_table`) before use.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        vocabulary: Vocabulary | None = None,
        clusters: Size = 5,
        seed: Seed = 0,
        form: Literal["base", "async", "contrastive"] = "base",
        rebuild_every: Size = 1,
        contrastive_epochs: Size = 1,
    ):
        """
        Args:
            backbone: an encoder-decoder of transformers.
            vocabulary: its tokens get a row even if they occur in no document.
            clusters: largest number of rows of a token.
            seed: random seed of the k-means.
            form: "base": the table is built once, before training. "async": it is rebuilt every
                `rebuild_every` epochs. "contrastive": the encoder is trained through the table
                (`live`) for `contrastive_epochs` epochs; then the table is rebuilt.
        """
        super().__init__(backbone)
        self.clusters, self.seed, self.form = clusters, seed, form
        self.rebuild_every, self.contrastive_epochs = rebuild_every, contrastive_epochs
        self.template = getattr(backbone, "template", TextTemplate())
        self.needed = [self.template.stop] + (vocabulary.tokens.tolist() if vocabulary else [])
        # (n,) int64 inside `live`: the documents of the first n rows.
        self.row_documents: Tensor | None = None
        # A hash of the documents from which the table was made.
        self.collection: str | None = None
        self._source: tuple[Sequence[Sequence[int]], Any, int] | None = None

    @property
    def table_parameters(self) -> list[Tensor]:
        return [self.table]

    def make_table(self, sequences: Sequence[Sequence[int]], documents: Any, length: int) -> None:
        """Makes the table from the encoder's vectors of sequences in their documents (Eq. 20)."""
        self._source = sequences, documents, length
        self.renew_table()

    def begin_epoch(self, epoch: int) -> None:
        rebuilds = self.form == "async" and epoch % self.rebuild_every == 0
        rebuilds |= self.form == "contrastive" and epoch == self.contrastive_epochs
        # A resumed run uses the table of its checkpoint until a new one is due.
        if epoch and rebuilds:
            self.renew_table()
        self._share_table()

    def end_training(self, epoch: int) -> None:
        if self.is_contrastive(epoch):
            self.renew_table()
            self._share_table()

    def _share_table(self) -> None:
        if world_size() > 1:  # every rank made the table, and rounding may differ
            self.set_table(**{name: broadcast(x) for name, x in self._tensors().items()})

    def is_contrastive(self, epoch: int) -> bool:
        """Whether the encoder is trained in this epoch, with a separate table for each batch."""
        return self.form == "contrastive" and epoch < self.contrastive_epochs

    def renew_table(self, state: dict[str, Any] | None = None) -> None:
        collection = hash_collection(self._source[1]["id"][:]) if self._source else None
        if state is not None:
            if collection not in (None, state["collection"]):
                raise ValueError(
                    f"checkpoint: its token table was made from the collection "
                    f"{state['collection']}, the documents given are the collection {collection}"
                )
            self.set_table(**{name: state[name] for name in _TENSORS})
            self.collection = state["collection"]
            return
        sequences, documents, length = self._source
        named, texts, first = read_in_context(sequences, documents["tokens"], length, self.template)
        encoded = encode_texts(self.backbone, texts, length, "contextual table")
        vectors = [x[first : first + len(own)] for x, own in zip(encoded, named, strict=True)]
        self.build(named, torch.cat(vectors), collection)

    @torch.no_grad()
    def build(
        self, sequences: Sequence[Sequence[int]], vectors: Tensor, collection: str | None = None
    ) -> None:
        """Builds the table: clusters the occurrences of each surface token and takes the means.

        Args:
            sequences: the tokens of each document (its title, its text), without the end token.
            vectors: (n, d), the contextual vectors of all these tokens, in order.
            collection: a hash of the documents, for `renew_table`.
        """
        tokens = torch.tensor([*chain.from_iterable(sequences)], dtype=torch.int64)
        # Stays on the vectors' device, for `encode_texts` the CPU: a GPU sums in varying order.
        tokens = tokens.to(vectors.device)
        *table, rows = cluster_rows(vectors.float(), tokens, self.clusters, self.seed)
        self.set_table(*table, **locate(sequences, rows))
        self.collection = collection
        self.extend(self.needed)

    def set_table(self, table: Tensor, row_tokens: Tensor, **occurrences: Tensor) -> None:
        """Sets the rows (R, d), their tokens (R,) and their occurrences in documents (`locate`)."""
        weight = self.backbone.get_input_embeddings().weight
        # Not in the state dict: the number of rows is unknown until a checkpoint is read.
        self.register_buffer("table", table.to(weight), persistent=False)
        self.set_rows(row_tokens.to(weight.device))
        for name, values in occurrences.items():
            self.register_buffer(name, values.to(weight.device), persistent=False)
        self.longest = int(occurrences["starts"].diff().max())  # tokens of a document

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _TENSORS}

    def table_state(self) -> dict[str, Any]:
        tensors = {name: values.cpu() for name, values in self._tensors().items()}
        return tensors | {"collection": self.collection}

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds the backbone's input vectors for tokens without a row."""
        new = self.without_row(tokens)
        if len(new):
            vectors = self.backbone.get_input_embeddings()(new)
            table = torch.cat([self.table, vectors.to(self.table)])
            # The table has a gradient only inside `live`.
            table = table if self.table.requires_grad else table.detach()
            rows = torch.cat([self.row_tokens, new])
            self.set_table(**self._tensors() | {"table": table, "row_tokens": rows})

    @contextmanager
    def batch_table(self, batch: PairBatch, epoch: int) -> Iterator[None]:
        """In contrastive epochs, makes a table of the batch, with gradients into the encoder.

        It holds the documents of all ranks' batches; each rank encodes a share of them.
        """
        if not self.is_contrastive(epoch):
            yield
            return
        index = gather_rows(batch.document_index).unique()
        sequences, documents, length = self._source
        rows, device = index.tolist(), index.device
        chosen = [sequences[row] for row in rows], documents[rows]["tokens"]
        named, texts, first = read_in_context(*chosen, length, self.template)
        own = slice_for_rank(len(texts))
        # A rank without documents encodes one text and ignores it: all ranks wait for its gradient.
        mine, read = named[own] or [[]], texts[own] or texts[:1]
        ids, mask = pad([self.template.read_document(text, length) for text in read])
        vectors = encode(self.backbone, ids.to(device), mask.to(device))
        lengths = torch.tensor([len(tokens) for tokens in mine])
        place = torch.arange(ids.shape[1]) - first
        is_named = (place >= 0) & (place < lengths[:, None])
        with self.live(named, gather_rows(vectors[is_named.to(device)].float()), index):
            # Targets beyond `length` have no contextual row.
            targets = gather_rows(batch.document_ids[batch.document_mask])
            self.extend(targets.unique().tolist())
            yield

    @contextmanager
    def live(
        self, sequences: Sequence[Sequence[int]], vectors: Tensor, documents: Tensor
    ) -> Iterator[None]:
        """Inside the block, the given vectors are the table, with gradients; used for one loss.

        Each occurrence is a row: the negatives of a document's tokens are the tokens of the other
        documents of the batch. The documents must be distinct, or a copy would be a negative.
        `masked_rows` excludes rows from the negatives of a query.

        Args:
            sequences, vectors: as for `build`, of the batch's distinct documents.
            documents: (D,) int64, the numbers of these documents, ascending (as from `unique`).
        """
        before, rows = self._tensors(), torch.arange(len(vectors), device=vectors.device)
        try:
            occurrences = locate(sequences, rows, documents)
            self.set_table(vectors, occurrences["tokens"], **occurrences)
            self.row_documents = documents.repeat_interleave(self.starts.diff())
            self.extend([self.template.stop])
            yield
        finally:
            self.row_documents = None
            self.set_table(**before)

    def masked_rows(self, batch: PairBatch, labels: Tensor) -> Tensor | None:
        if batch.relevant is None or self.row_documents is None:
            return None
        known = (self.row_documents + 1 == batch.relevant.unsqueeze(-1)).any(
            1
        )  # (B, R, n) → (B, n)
        rows = F.pad(known, (0, len(self.row_tokens) - known.shape[1]))  # others have no document
        lengths = batch.document_mask.sum(1).view(len(batch), -1).sum(1)
        rows = rows.repeat_interleave(lengths, 0, output_size=len(labels))
        return rows.scatter(1, labels.unsqueeze(1), False)

    def labels(self, tokens: Tensor, document_index: Tensor) -> Tensor:
        """Returns the rows of targets: the rows of the same tokens in the target's document.

        A target is located in its document at the first place with the longest common prefix.
        Tokens after that prefix (the end token, a special token, a target of another text) and
        before it (BART's <s>) get the first row of their surface token.
        """
        start = len(before := self.template.target)
        # An n-gram does not begin with special tokens.
        if start and not (tokens[:, :start] == tokens.new_tensor(before)).all():
            start = 0
        targets = tokens[:, start:]
        size = targets.shape[1]
        texts, rows = self._read_documents(document_index, size - 1)
        agrees = (texts.unfold(1, size, 1) == targets.unsqueeze(1)).long().cumprod(2)
        place = agrees.sum(2).argmax(1, keepdim=True)  # ties go to the first
        agrees = agrees.gather(1, place.unsqueeze(2).expand(-1, 1, size)).squeeze(1).bool()
        rows = rows.gather(1, place + torch.arange(size, device=tokens.device))
        first = self.first_row(tokens)
        return torch.cat([first[:, :start], rows.where(agrees, first[:, start:])], 1)

    def _read_documents(self, document_index: Tensor, more: int) -> tuple[Tensor, Tensor]:
        """(B, L + more) the documents' tokens, −1 after their end, and their rows; L ≥ 1.

        Args:
            document_index: (B,) int64; a document that the table lacks has no tokens.
        """
        at = torch.searchsorted(self.documents, document_index).clamp(max=len(self.documents) - 1)
        length = self.starts.diff()[at] * (self.documents[at] == document_index)
        offset = torch.arange(max(1, self.longest) + more, device=at.device)
        inside = offset < length.unsqueeze(1)
        place = (self.starts[at].unsqueeze(1) + offset) * inside
        tokens, rows = (F.pad(x, (0, 1)) for x in (self.tokens, self.rows))  # index 0 exists
        return tokens[place].masked_fill(~inside, -1), rows[place]

    def embed(self, rows: Tensor) -> Tensor:
        return self.table[rows]

    def logits(self, hidden: Tensor, context: Tensor | None, position: Tensor) -> Tensor:
        return F.linear(hidden * self.scale, self.table)

    def vectors(self, rows: Tensor, context: Tensor | None) -> Tensor:
        return self.table[rows] * self.scale


def cluster_rows(
    vectors: Tensor, tokens: Tensor, k: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Makes at most k rows for each surface token: its occurrences, or k means if it has more.

    Args:
        vectors: (n, d) float, one for each occurrence.
        tokens: (n,) int64, the surface token of each occurrence.
        k: largest number of rows of a token.
        seed: random seed of the k-means (k-means++, one start).

    Returns:
        rows: (R, d), each the mean of its occurrences, in the order of the tokens.
        row_tokens: (R,) int64, ascending.
        row_of_occurrence: (n,) int64.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    order = tokens.argsort(stable=True)
    distinct, counts = tokens[order].unique_consecutive(return_counts=True)
    samples = np.split(vectors[order].cpu().numpy(), counts.cumsum(0).cpu()[:-1])
    k_means = KMeans(k, n_init=1, random_state=seed)
    # One thread: several threads would sum in varying order.
    with threadpool_limits(1), warnings.catch_warnings():
        # Fewer than k distinct vectors give fewer rows.
        warnings.simplefilter("ignore", ConvergenceWarning)
        parts = [k_means.fit_predict(x) if len(x) > k else np.arange(len(x)) for x in samples]
    cluster = torch.empty_like(order)
    cluster[order] = torch.from_numpy(np.concatenate(parts)).to(order)
    # Numbers the non-empty clusters, token by token.
    key = torch.searchsorted(distinct, tokens) * k + cluster
    key, row, members = key.unique(return_inverse=True, return_counts=True)
    sums = vectors.new_zeros(len(key), vectors.shape[1]).index_add(0, row, vectors)
    return sums / members.unsqueeze(1), distinct[key // k], row


def read_in_context(
    sequences: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    length: int,
    template: TextTemplate,
) -> tuple[list[list[int]], list[list[int]], int]:
    """Makes the texts to encode so that identifiers are read in context: `title + ' ' + text`.

    Args:
        sequences: for each document, the source of its targets; [] = not in the table.
        texts: the tokens of each document.
        length: number of tokens kept of a text, special tokens included.

    Returns:
        The sequences without special tokens (BART's <s>, the end token), which have no context; for
        each, a text that begins with it; and the place of its first token in the encoded text.
    """
    before, room = len(template.target), length - len(template.read_document((), 0))
    named, read = [], []
    for sequence, text in zip(sequences, texts, strict=True):
        around = before if tuple(sequence[:before]) == template.target else 0
        own = [token for token in sequence[around:] if token != template.stop][: max(0, room)]
        begins = list(text[: len(own)]) == own
        named.append(own)
        read.append([] if not own else list(text) if begins else [*own, *text])
    return named, read, len(template.document)

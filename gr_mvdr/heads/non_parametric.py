"""Non-parametric decoding: contextual token vectors as the output table (gr_as_mvdr Eq. 20).

D in rel(d, q) = sum(Dᵀ Q ⊙ A) are hidden states of an encoder that reads the documents, a few rows
for each surface token. They are both the decoder's inputs and its output table.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from gr_mvdr.backbones import encode, encode_texts
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.heads.plain import TableHead, Vocabulary
from gr_mvdr.identifiers.scheme import hash_collection
from gr_mvdr.options import Seed, Size, part
from gr_mvdr.ranks import broadcast, gather_rows, slice_for_rank, world_size
from gr_mvdr.template import TextTemplate


class Occurrences(nn.Module):
    """Token sequences of documents with a row number for each token, as flat arrays.

    Attributes:
        documents: (D,) int64, ascending, the documents' numbers.
        starts: (D + 1,) int64; tokens, rows: (n,) int64, document by document.
    """

    def __init__(self, documents: Tensor, starts: Tensor, tokens: Tensor, rows: Tensor):
        super().__init__()
        assert len(documents) and (documents.diff() > 0).all(), "distinct, ascending documents"
        assert len(tokens) == len(rows) == starts[-1], "a row for every token"
        # Not in the state dict: sizes are not known before a checkpoint is read.
        buffers = dict(documents=documents, starts=starts, tokens=tokens, rows=rows)
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    @classmethod
    def of(
        cls, sequences: Sequence[Sequence[int]], rows: Tensor, documents: Tensor | None = None
    ) -> "Occurrences":
        """From token lists and the rows of all tokens; the documents are 0, 1, 2, … by default."""
        if documents is None:
            documents = torch.arange(len(sequences))
        starts = torch.tensor([0, *map(len, sequences)]).cumsum(0)
        tokens = flatten_sequences(sequences, rows)
        return cls(documents.to(rows.device), starts.to(rows.device), tokens, rows)

    def find(self, targets: Tensor, document_index: Tensor) -> tuple[Tensor, Tensor]:
        """Looks targets up in their documents, at the first place with the longest common prefix.

        Args:
            targets: (B, M) int64; document_index: (B,) int64, also unknown numbers.

        Returns:
            rows (B, M) int64, valid where `agrees`; agrees (B, M) bool, the common prefix.
        """
        size = targets.shape[1]
        tokens, rows = self._padded(document_index, size)
        agrees = tokens.unfold(1, size, 1) == targets.unsqueeze(1)  # (B, places, M)
        agrees = agrees.long().cumprod(2)
        place = agrees.sum(2).argmax(1, keepdim=True)  # ties go to the first
        offset = torch.arange(size, device=targets.device)
        agrees = agrees.gather(1, place.unsqueeze(2).expand(-1, 1, size)).squeeze(1).bool()
        return rows.gather(1, place + offset), agrees

    def _padded(self, document_index: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """(B, L + size − 1) tokens of documents, −1 after their end, and rows; L ≥ 1."""
        at = torch.searchsorted(self.documents, document_index).clamp(max=len(self.documents) - 1)
        length = self.starts.diff()[at] * (self.documents[at] == document_index)
        offset = torch.arange(max(1, int(length.max())) + size - 1, device=at.device)
        inside = offset < length.unsqueeze(1)
        place = (self.starts[at].unsqueeze(1) + offset) * inside
        if not len(self.tokens):  # nothing to gather from
            return place - 1, place
        return self.tokens[place].masked_fill(~inside, -1), self.rows[place] * inside


def flatten_sequences(sequences: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Concatenates token lists: (n,) int64 on the device of another tensor."""
    tokens = [token for sequence in sequences for token in sequence]
    return torch.tensor(tokens, dtype=torch.int64, device=like.device)


@part("head")
class NonParametricHead(TableHead):
    """A table of contextual token vectors, at most `clusters` for each surface token (Eq. 20).

    Its rows are not parameters: they get a gradient in `batch_table` alone. The table has to be
    made (`make_table`) or loaded (`load_table_state`) before use.
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
            clusters: largest number of rows of a token; seed: random seed of their k-means.
            form: "base": the table is built once, before training; "async": again every
                `rebuild_every` epochs; "contrastive": again after `contrastive_epochs` epochs in
                which the encoder is trained through the table (`live`).
        """
        super().__init__(backbone)
        self.clusters, self.seed, self.form = clusters, seed, form
        self.rebuild_every, self.contrastive_epochs = rebuild_every, contrastive_epochs
        self.template = getattr(backbone, "template", TextTemplate())
        self.stop = self.template.stop
        self.needed = [self.stop] + ([] if vocabulary is None else vocabulary.tokens.tolist())
        self.occurrences: Occurrences | None = None
        # (n,) int64 within `live`: the documents of the first n rows.
        self.row_documents: Tensor | None = None
        self.collection: str | None = None

    @property
    def table_parameters(self) -> list[Tensor]:
        return [self.table]

    def make_table(self, sequences: Sequence[Sequence[int]], documents: Any, length: int) -> None:
        """The encoder's vectors of the sequences, read in their documents (Eq. 20)."""
        self._source = sequences, documents, length
        self.renew_table()

    def begin_epoch(self, epoch: int) -> None:
        # A resumed run has its checkpoint's table until the next one is due.
        if epoch and self.builds_before(epoch):
            self.renew_table()
        # Each rank has made the table, and rounding may differ between devices.
        if world_size() > 1:
            state = self.table_state()
            collection = state.pop("collection")
            state = {name: broadcast(state[name]) for name in sorted(state)}
            self.load_table_state(state | {"collection": collection})

    def builds_before(self, epoch: int) -> bool:
        """Whether the table is made before this epoch, counted from 0."""
        if self.form == "async":
            return epoch % self.rebuild_every == 0
        return epoch == 0 or (self.form == "contrastive" and epoch == self.contrastive_epochs)

    def is_contrastive(self, epoch: int) -> bool:
        """Whether the encoder learns its own vectors in this epoch, with a table a batch."""
        return self.form == "contrastive" and epoch < self.contrastive_epochs

    @torch.no_grad()
    def build(
        self, sequences: Sequence[Sequence[int]], vectors: Tensor, collection: str | None = None
    ) -> None:
        """Clusters the occurrences of every surface token and takes the means as the table.

        Args:
            sequences: document d's own tokens (its title, its text), without the end token.
            vectors: (n, d), the contextual vectors of all these tokens, in order.
            collection: a hash of the documents, for `load_table_state`.
        """
        vectors = vectors.float()  # on their device: the order of a GPU's sums varies
        tokens = flatten_sequences(sequences, vectors)
        assert len(tokens) == len(vectors), "a vector for every token"
        rows, row_tokens, row = cluster_rows(vectors, tokens, self.clusters, self.seed)
        self.set_table(rows, row_tokens, Occurrences.of(sequences, row))
        self.collection = collection
        self.extend(self.needed)

    def set_table(self, rows: Tensor, row_tokens: Tensor, occurrences: Occurrences) -> None:
        """Sets the table: rows (R, d), their tokens (R,) int64 and occurrences."""
        weight = self.backbone.get_input_embeddings().weight
        # Not in the state dict: the number of rows is not known before a checkpoint is read.
        self.register_buffer("table", rows.to(weight), persistent=False)
        self.set_rows(row_tokens.to(weight.device))
        self.occurrences = occurrences.to(weight.device)

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds the backbone's input vectors for tokens without a row."""
        known = set(self.row_tokens.tolist())
        missing = [token for token in dict.fromkeys(tokens) if token not in known]
        if missing:
            new = torch.tensor(missing, device=self.table.device)
            vectors = self.backbone.get_input_embeddings()(new)
            table = torch.cat([self.table, vectors.to(self.table)])
            # Only in `live` does the table have a gradient.
            table = table if self.table.requires_grad else table.detach()
            self.set_table(table, torch.cat([self.row_tokens, new]), self.occurrences)

    @contextmanager
    def batch_table(self, batch: PairBatch, epoch: int) -> Iterator[None]:
        """The batch's own table, with gradients into the encoder, in contrastive epochs.

        The documents are those of all ranks' batches: each rank encodes its part of them.
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
        # A rank without documents encodes one text for nothing: all ranks wait for its gradient.
        mine, read = named[own] or [[]], texts[own] or texts[:1]
        ids, mask = pad([self.template.read_document(text, length) for text in read])
        vectors = encode(self.backbone, ids.to(device), mask.to(device))
        lengths = torch.tensor([len(tokens) for tokens in mine])
        place = torch.arange(ids.shape[1]) - first
        is_named = (place >= 0) & (place < lengths[:, None])
        with self.live(named, gather_rows(vectors[is_named.to(device)].float()), index):
            # Targets from beyond `length` have no contextual row.
            targets = gather_rows(batch.document_ids[batch.document_mask])
            self.extend(targets.unique().tolist())
            yield

    @contextmanager
    def live(
        self, sequences: Sequence[Sequence[int]], vectors: Tensor, documents: Tensor
    ) -> Iterator[None]:
        """For one loss, makes the given vectors the table, with gradients.

        Each occurrence is a row: the tokens of the batch's other documents are the negatives of a
        document's own tokens. The documents must be distinct, or a copy would be a negative;
        `relevant_rows` excludes rows from the negatives of a query.

        Args:
            sequences, vectors: as for `build`, of the batch's distinct documents.
            documents: (D,) int64, ascending (as from `unique`), the numbers of these documents.
        """
        before = self.table, self.row_tokens, self.occurrences
        rows = torch.arange(len(vectors), device=vectors.device)
        try:
            occurrences = Occurrences.of(sequences, rows, documents)
            self.set_table(vectors, occurrences.tokens, occurrences)
            counts = occurrences.starts.diff()
            self.row_documents = occurrences.documents.repeat_interleave(counts)
            self.extend([self.stop])
            yield
        finally:
            self.row_documents = None
            self.set_table(*before)

    def relevant_rows(self, relevant: Tensor | None) -> Tensor | None:
        if relevant is None or self.row_documents is None:
            return None
        known = (self.row_documents + 1 == relevant.unsqueeze(-1)).any(1)  # (B, R, n) → (B, n)
        return F.pad(known, (0, self.n_rows - known.shape[1]))  # later rows have no document

    def table_state(self) -> dict[str, Any]:
        """The table and its documents, for a checkpoint."""
        state = {"table": self.table, "row_tokens": self.row_tokens}
        state |= dict(self.occurrences.named_buffers())
        state = {name: value.cpu() for name, value in state.items()}
        return state | {"collection": self.collection}

    def load_table_state(self, state: dict[str, Any], collection: str | None = None) -> None:
        """Takes the table of a checkpoint.

        Raises:
            ValueError: the table was made from documents with another hash than `collection`.
        """
        if collection is not None and collection != state["collection"]:
            raise ValueError(
                f"checkpoint: its token table was made from the collection {state['collection']}, "
                f"the documents given are the collection {collection}"
            )
        parts = {name: state[name] for name in ("documents", "starts", "tokens", "rows")}
        self.set_table(state["table"], state["row_tokens"], Occurrences(**parts))
        self.collection = state["collection"]

    def renew_table(self, state: dict[str, Any] | None = None) -> None:
        sequences, documents, length = self._source
        collection = hash_collection(documents["id"][:])
        if state is not None:
            self.load_table_state(state, collection)
            return
        named, texts, first = read_in_context(sequences, documents["tokens"], length, self.template)
        encoded = encode_texts(self.backbone, texts, length, "contextual table")
        pairs = zip(encoded, named, strict=True)
        vectors = [text[first : first + len(own)] for text, own in pairs]
        self.build(named, torch.cat(vectors), collection)

    def labels(self, tokens: Tensor, document_index: Tensor) -> Tensor:
        """The rows of targets: those of the same tokens in the document itself.

        A target is located in its document at the first place with the longest common prefix.
        Tokens after that prefix (the end token, a special token, a target of another text) and
        before it (BART's <s>) get the first row of their surface token.
        """
        before = self.template.target
        size = len(before)
        around = tokens[:, :size] == tokens.new_tensor(before)
        start = size if bool(around.all()) else 0  # an n-gram has no special tokens before it
        rows, agrees = self.occurrences.find(tokens[:, start:], document_index)
        first_rows = self.first_row(tokens)
        return torch.cat([first_rows[:, :start], rows.where(agrees, first_rows[:, start:])], 1)

    def embed(self, rows: Tensor) -> Tensor:
        return self.table[rows]

    def logits(self, hidden: Tensor, context: Tensor | None, position: Tensor) -> Tensor:
        return F.linear(hidden * self.scale, self.table)

    def vectors(self, rows: Tensor, context: Tensor | None) -> Tensor:
        return self.table[rows] * self.scale


def cluster_rows(
    vectors: Tensor, tokens: Tensor, k: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """At most k rows for each surface token: its occurrences, or their k-means if there are more.

    Args:
        vectors: (n, d) float, one for each occurrence; tokens: (n,) int64, their surface tokens.
        k: largest number of rows of a token.
        seed: random seed of the k-means (k-means++, one start).

    Returns:
        rows (R, d), each the mean of its occurrences, in the order of their tokens; row_tokens
        (R,) int64, ascending; row_of_occurrence (n,) int64.
    """
    order = tokens.argsort(stable=True)
    distinct, counts = tokens[order].unique_consecutive(return_counts=True)
    samples = vectors[order].cpu().numpy()
    cluster = torch.empty_like(order)
    cluster[order] = torch.from_numpy(_clusters(samples, counts.tolist(), k, seed)).to(order.device)
    # Numbers the non-empty clusters, token by token.
    key = torch.searchsorted(distinct, tokens) * k + cluster
    key, row, members = key.unique(return_inverse=True, return_counts=True)
    sums = vectors.new_zeros(len(key), vectors.shape[1]).index_add(0, row, vectors)
    return sums / members.unsqueeze(1), distinct[key // k], row


def _clusters(samples: np.ndarray, counts: list[int], k: int, seed: int) -> np.ndarray:
    """(n,) int64, the cluster 0 … k − 1 of each sample within its token; samples in token order."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    k_means = KMeans(k, n_init=1, random_state=seed)
    clusters, start = [np.empty(0, np.int64)], 0
    # One thread: the order of a sum over several threads varies.
    with threadpool_limits(1), warnings.catch_warnings():
        # Fewer distinct vectors than k give fewer rows.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for count in counts:
            own = samples[start : start + count]
            clusters.append(k_means.fit_predict(own) if count > k else np.arange(count))
            start += count
    return np.concatenate(clusters).astype(np.int64)


def read_in_context(
    sequences: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    length: int,
    template: TextTemplate,
) -> tuple[list[list[int]], list[list[int]], int]:
    """Texts to encode so that identifiers are read in context: `title + ' ' + text`.

    Args:
        sequences: of each document, the source of its targets; [] = not in the table.
        texts: the documents' tokens; length: tokens kept of a text, special tokens included.

    Returns:
        Each sequence without special tokens (BART's <s>, the end token), which have no context;
        texts that begin with it; and the place of its first token among the encoded tokens.
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

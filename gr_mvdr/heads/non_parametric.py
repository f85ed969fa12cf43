"""Non-parametric decoding: contextual token vectors as the output table (gr_as_mvdr Eq. 20).

D in rel(d, q) = sum(Dᵀ Q ⊙ A) are hidden states of an encoder that read the documents, a few rows
a surface token. They are the decoder's inputs and its output table alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.heads.occurrences import Occurrences, flat
from gr_mvdr.heads.plain import Vocabulary
from gr_mvdr.heads.table_head import TableHead
from gr_mvdr.heads.token_clusters import cluster_rows
from gr_mvdr.parts import part
from gr_mvdr.tokenizers import EOS_ID

FORMS = ("base", "async", "contrastive")


@part("head")
class NonParametricHead(TableHead):
    """A table of contextual token vectors, at most `clusters` a surface token (Eq. 20).

    Its rows are no parameters: they get a gradient from `live` alone. The table has to be built
    (`build`), set (`set_table`) or loaded (`load_table_state`) before use.
    """

    def __init__(
        self,
        backbone: Any,
        vocabulary: Vocabulary | None = None,
        clusters: int = 5,
        seed: int = 0,
        form: str = "base",
        rebuild_every: int = 1,
        contrastive_epochs: int = 1,
    ):
        """
        Args:
            backbone: a T5 with `shared` and `config`.
            vocabulary: its tokens get a row even where they occur in no document.
            clusters: most rows a surface token; seed: of their k-means.
            form: "base": the table is built once, before training; "async": again after every
                `rebuild_every` epochs; "contrastive": again after `contrastive_epochs` epochs in
                which the encoder that makes it learns (`live`).

        Raises:
            ValueError: an option is impossible.
        """
        super().__init__(backbone)
        if form not in FORMS:
            raise ValueError(f"model.head.form={form}: must be one of {', '.join(FORMS)}")
        numbers = dict(
            clusters=clusters, rebuild_every=rebuild_every, contrastive_epochs=contrastive_epochs
        )
        for name, value in numbers.items():
            if value < 1:
                raise ValueError(f"model.head.{name}={value}: must be ≥ 1")
        self.clusters, self.seed, self.form = clusters, seed, form
        self.rebuild_every, self.contrastive_epochs = rebuild_every, contrastive_epochs
        self.needed = [EOS_ID] if vocabulary is None else [EOS_ID, *vocabulary.tokens.tolist()]
        self.occurrences: Occurrences | None = None
        # (n,) int64, in `live`: the document of each of the first n rows.
        self.row_documents: Tensor | None = None
        self.collection: str | None = None

    @property
    def reads_output_table(self) -> bool:
        return False

    # The schedule

    def builds_before(self, epoch: int) -> bool:
        if self.form == "async":
            return epoch % self.rebuild_every == 0
        return epoch == 0 or (self.form == "contrastive" and epoch == self.contrastive_epochs)

    def is_contrastive(self, epoch: int) -> bool:
        return self.form == "contrastive" and epoch < self.contrastive_epochs

    # The table

    @property
    def built(self) -> bool:
        return self.occurrences is not None

    @torch.no_grad()
    def build(
        self, sequences: Sequence[Sequence[int]], vectors: Tensor, collection: str | None = None
    ) -> None:
        """Clusters the occurrences of every surface token and takes the means as the table.

        Args:
            sequences: document d's own tokens (its title, its text), without the end token.
            vectors: (n, d_model), the contextual vectors of all these tokens, in order.
            collection: see `set_table`.
        """
        vectors = vectors.float()  # where they are: a GPU would sum them in a varying order
        tokens = flat(sequences, vectors)
        assert len(tokens) == len(vectors), "a vector for every token"
        rows, row_tokens, row = cluster_rows(vectors, tokens, self.clusters, self.seed)
        self.set_table(rows, row_tokens, sequences, row, collection)
        self.extend(self.needed)

    def set_table(
        self,
        rows: Tensor,
        row_tokens: Tensor,
        sequences: Sequence[Sequence[int]],
        row_of_occurrence: Tensor,
        collection: str | None = None,
    ) -> None:
        """Takes a table as it is.

        Args:
            rows: (R, d_model); row_tokens: (R,) int64.
            sequences: the documents' tokens; row_of_occurrence: (n,) int64, their rows, in order.
            collection: a hash of the documents, for `load_table_state`.
        """
        self._set(rows, row_tokens, Occurrences.of(sequences, row_of_occurrence))
        self.collection = collection

    def _set(self, table: Tensor, row_tokens: Tensor, occurrences: Occurrences) -> None:
        weight = self.backbone.shared.weight
        # Not in the state dict: the number of rows is not known before a checkpoint is read.
        self.register_buffer("table", table.to(weight), persistent=False)
        self.set_rows(row_tokens.to(weight.device))
        self.occurrences = occurrences.to(weight.device)

    def extend(self, tokens: Iterable[int]) -> None:
        """Rows of the backbone's shared embedding for tokens that have none in the table."""
        known = set(self.row_tokens.tolist())
        missing = [token for token in dict.fromkeys(tokens) if token not in known]
        if missing:
            new = torch.tensor(missing, device=self.table.device)
            table = torch.cat([self.table, self.backbone.shared.weight[new].to(self.table)])
            # Only in `live` does the table have a gradient.
            table = table if self.table.requires_grad else table.detach()
            self._set(table, torch.cat([self.row_tokens, new]), self.occurrences)

    @contextmanager
    def live(
        self, sequences: Sequence[Sequence[int]], vectors: Tensor, documents: Tensor
    ) -> Iterator[None]:
        """For one loss, the given vectors are the table, and gradients flow into them.

        One row an occurrence: the tokens of the batch's other documents are the negatives of a
        document's own. A document must not be there twice, or its copy would be one of them; of
        which queries a row is no negative either, `relevant_rows` says.

        Args:
            sequences: the tokens of the batch's distinct documents.
            vectors: (n, d_model), the contextual vectors of all these tokens, in order.
            documents: (D,) int64, ascending (as from `unique`), the numbers of these documents.
        """
        before = self.table, self.row_tokens, self.occurrences
        rows = torch.arange(len(vectors), device=vectors.device)
        try:
            occurrences = Occurrences.of(sequences, rows, documents)
            self._set(vectors, occurrences.tokens, occurrences)
            counts = occurrences.starts.diff()
            self.row_documents = occurrences.documents.repeat_interleave(counts)
            self.extend([EOS_ID])
            yield
        finally:
            self.row_documents = None
            self._set(*before)

    def relevant_rows(self, relevant: Tensor | None) -> Tensor | None:
        if relevant is None or self.row_documents is None:
            return None
        found = (self.row_documents + 1 == relevant.unsqueeze(-1)).any(1)  # (B, R, n) → (B, n)
        return F.pad(found, (0, self.n_rows - found.shape[1]))  # later rows are of no document

    def table_state(self) -> dict[str, Any]:
        """The table and its documents, for a checkpoint."""
        state = {"table": self.table, "row_tokens": self.row_tokens}
        state |= dict(self.occurrences.named_buffers())
        return {name: value.cpu() for name, value in state.items()} | {
            "collection": self.collection
        }

    def load_table_state(self, state: dict[str, Any], collection: str | None = None) -> None:
        """Takes the table of a checkpoint.

        Raises:
            ValueError: the table was made from other documents.
        """
        if collection is not None and collection != state["collection"]:
            raise ValueError(
                f"checkpoint: its token table was made from the collection {state['collection']}, "
                f"the documents given are the collection {collection}"
            )
        parts = {name: state[name] for name in ("documents", "starts", "tokens", "rows")}
        self._set(state["table"], state["row_tokens"], Occurrences(**parts))
        self.collection = state["collection"]

    # The head

    def labels(self, tokens: Tensor, document_index: Tensor) -> Tensor:
        """The rows of given targets: those of the same tokens in the document itself.

        A target is looked for in its document's tokens: at the first place that agrees with most
        of its beginning. Tokens past that (the end token, a marker, a target of another text)
        stand for the first row of their surface token.
        """
        rows, agrees = self.occurrences.find(tokens, document_index)
        return torch.where(agrees, rows, self.first_row(tokens))

    def embed(self, rows: Tensor) -> Tensor:
        return self.table[rows]

    def logits(self, hidden: Tensor, context: Tensor | None, position: Tensor) -> Tensor:
        return F.linear(hidden * self.scale, self.table)

    def vectors(self, rows: Tensor, context: Tensor | None) -> Tensor:
        return self.table[rows] * self.scale

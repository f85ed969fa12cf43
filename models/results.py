"""What a `Retriever` returns: small typed results that become pandas tables or show themselves.

pandas and matplotlib are imported by the methods that use them.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from gr_mvdr.options import make_printable
from gr_mvdr.relevance import PairAlignment, divide

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

_MATRICES = ("alignment", "similarity", "product")
_CELL = 0.16  # inches that a token's row or column takes
_LETTERS = {"title": 30, "snippet": 60}  # at most, in a printed table of hits
_LARGEST = 3  # shares of a hit that a notebook's table names


class TextShare(NamedTuple):
    """What one part adds to a score: a query token, a word, an n-gram; `view`: see `Share`."""

    text: str
    value: float
    view: str = ""


@dataclass(frozen=True)
class Hit:
    """A document that a search found.

    Attributes:
        rank: from 1. id, title: of the document; snippet: the passage of it that shares most words
            with the query.
        score: what the system ranks by. shares: what it is made of; they sum to it.
    """

    rank: int
    id: str
    title: str
    snippet: str
    score: float
    shares: tuple[TextShare, ...] = field(repr=False)


@dataclass(frozen=True)
class NearToken:
    """A document token that is near to a query token.

    Attributes:
        id, title: of the document. before, token, after: the token and the text around it.
        similarity: the inner product of the two tokens' vectors.
    """

    id: str
    title: str
    before: str
    token: str
    after: str
    similarity: float


@dataclass(frozen=True)
class NextToken:
    """A token that a generative system may write after a prefix.

    Attributes:
        token: its id; text: as it is written; probability: given the query and the prefix.
        allowed: whether a search could generate it.
        n_documents: how many documents can still be reached after it; documents: ids of some.
    """

    token: int
    text: str
    probability: float
    allowed: bool
    n_documents: int
    documents: tuple[str, ...]


class Table:
    """A result that notebooks show as a table."""

    def to_pandas(self) -> "pandas.DataFrame":
        """The result as a pandas table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.to_pandas().to_html(escape=True)


@dataclass(frozen=True, repr=False)
class Hits(Table, Sequence[Hit]):
    """The documents that a search found for a query, best first; prints as a table."""

    query: str
    hits: tuple[Hit, ...]

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, place: Any) -> Any:
        """A hit; of a slice, hits again."""
        found = self.hits[place]
        return Hits(self.query, found) if isinstance(place, slice) else found

    def __repr__(self) -> str:
        columns = ["rank", "score", "id", "title", "snippet"]
        rows = [[f"{h.rank}", f"{h.score:.4f}", h.id, h.title, h.snippet] for h in self]
        lines = [list(map(_shorten, columns, row)) for row in [columns, *rows]]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        pads = (str.rjust, str.rjust, str.ljust, str.ljust, str.ljust)
        table = [
            "  ".join(pad(*cell) for pad, *cell in zip(pads, line, widths, strict=True))
            for line in lines
        ]
        heading = f"{count_of(len(self), 'document')} for {self.query!r}"
        return "\n".join([heading, *(line.rstrip() for line in table if rows)])

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each document: rank, id, title, snippet, score, shares (text → value)."""
        import pandas

        names = [f.name for f in fields(Hit)]
        rows = [[getattr(hit, name) for name in names] for hit in self]
        return pandas.DataFrame(rows, columns=names)

    def _repr_html_(self) -> str:
        table = self.to_pandas()
        table["shares"] = table["shares"].map(_name_largest)
        return table.rename(columns={"shares": "largest shares"}).to_html(escape=True, index=False)


def _shorten(column: str, text: str) -> str:
    """A text in one line of a terminal, cut where its column has a limit."""
    text, limit = make_printable(" ".join(text.split())), _LETTERS.get(column)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def _name_largest(shares: Sequence[TextShare]) -> str:
    largest = sorted(shares, key=lambda share: -abs(share.value))[:_LARGEST]
    return ", ".join(f"{share.text} {share.value:.3f}" for share in largest)


def count_of(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless the number is one: "1 head", "2 heads"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


@dataclass(frozen=True, repr=False)
class Scores(Table):
    """Scores of all pairs.

    Attributes:
        values: (documents, queries) fp64 on the CPU.
        documents, queries: what was given.
    """

    values: Tensor
    documents: list[str]
    queries: list[str]

    def to_pandas(self) -> "pandas.DataFrame":
        """Documents as rows, queries as columns."""
        import pandas

        return pandas.DataFrame(self.values.numpy(), self.documents, self.queries)

    def __repr__(self) -> str:
        documents = count_of(len(self.documents), "document")
        return f"Scores of {documents} under {count_of(len(self.queries), 'query')}"


@dataclass(frozen=True, repr=False)
class EncodedText(Table):
    """The token vectors of a text.

    Attributes:
        tokens: n strings. vectors: (n, d) fp32 on the CPU.
        salience: (n,) u of the tokens (aligner Eq. 2); None = all one.
    """

    tokens: list[str]
    vectors: Tensor
    salience: Tensor | None = None

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each token: its salience, if it has one, and its vector."""
        import pandas

        own = {} if self.salience is None else {"salience": self.salience.numpy()}
        return pandas.DataFrame(own | dict(enumerate(self.vectors.T.numpy())), self.tokens)

    def __repr__(self) -> str:
        return f"EncodedText of {count_of(len(self.tokens), 'token')}, d = {self.vectors.shape[1]}"


@dataclass(repr=False)
class AlignedPair(PairAlignment, Table):
    """S and A of one pair (Eq. 1), and its tokens as they are written; draws itself.

    Attributes:
        query_tokens: N strings; document_tokens: M strings. The tensors have B = 1 and no padding.
        title: what is aligned, for figures.
    """

    query_tokens: list[str] = field(default_factory=list)
    document_tokens: list[str] = field(default_factory=list)
    title: str = ""

    def matrix(self, what: str = "alignment", head: int | None = None) -> Tensor:
        """(M, N) one layer of the picture, on the CPU.

        Args:
            what: "alignment" A, "similarity" S, or "product" S ⊙ A / Z, which sums to the
                relevance.
            head: None = all: the mean of A and S, the sum of the product.

        Raises:
            ValueError: another name, or there is no such head.
        """
        heads = self.alignment.shape[1]
        if what not in _MATRICES:
            raise ValueError(f"what={what}: must be one of {', '.join(_MATRICES)}")
        if head is not None and not 0 <= head < heads:
            raise ValueError(f"head={head}: must be from 0 to {heads - 1}, or None for all")
        if what == "product":
            each = divide(self.similarity * self.alignment, self.normaliser[:, None, None, None])[0]
            return (each.sum(0) if head is None else each[head]).cpu()
        found = getattr(self, what)[0]
        return (found.mean(0) if head is None else found[head]).cpu()

    @property
    def query_shares(self) -> list[TextShare]:
        """What each query token adds to the relevance; they sum to it."""
        return _texts(self.query_tokens, self.matrix("product").sum(0))

    @property
    def document_shares(self) -> list[TextShare]:
        """What each document token adds to the relevance; they sum to it."""
        return _texts(self.document_tokens, self.matrix("product").sum(1))

    def plot(
        self, what: str = "alignment", head: int | None = None, axes: "Axes | None" = None
    ) -> "Axes":
        """Draws one layer, document tokens as rows; equal tokens are framed (Figure 5).

        Args:
            what, head: see `matrix`. axes: to draw into; None = a new figure of pyplot.
        """
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.subplots(figsize=self.figure_size, layout="constrained")[1]
        same = self.document_ids[0][:, None] == self.query_ids[0]
        values = self.matrix(what, head)
        draw_alignment(axes, values, same.cpu(), self.document_tokens, self.query_tokens, what)
        axes.set_title(self.title, fontsize=8, parse_math=False)
        return axes

    @property
    def figure_size(self) -> tuple[float, float]:
        """Inches that a figure of the pair takes."""
        rows, columns = len(self.document_tokens), len(self.query_tokens)
        return max(4.0, 2.5 + _CELL * columns), max(2.5, 1.2 + _CELL * rows)

    def to_pandas(self) -> "pandas.DataFrame":
        """What each pair of tokens adds to the relevance, document tokens as rows."""
        import pandas

        values = self.matrix("product").numpy()
        return pandas.DataFrame(values, self.document_tokens, self.query_tokens)

    def _repr_html_(self) -> None:
        return None  # the picture

    def _repr_png_(self) -> bytes:
        from matplotlib.figure import Figure

        figure, file = Figure(figsize=self.figure_size, layout="constrained"), io.BytesIO()
        self.plot(axes=figure.subplots())
        figure.savefig(file, format="png", dpi=110)
        return file.getvalue()

    def __repr__(self) -> str:
        m, n = len(self.document_tokens), len(self.query_tokens)
        heads = count_of(self.alignment.shape[1], "head")
        return f"AlignedPair of {m} × {n} tokens, {heads}, score {self.score.item():.4f}"


def _texts(tokens: Sequence[str], values: Tensor) -> list[TextShare]:
    return [TextShare(text, value) for text, value in zip(tokens, values.tolist(), strict=True)]


def draw_alignment(
    axes: "Axes",
    weights: Tensor,
    same: Tensor,
    document_tokens: Sequence[str],
    query_tokens: Sequence[str],
    label: str,
    font_size: float = 6.5,
    outline: str = "black",
) -> None:
    """A matrix of token pairs, document tokens as rows, with its colour bar (Figure 5).

    Args:
        weights: (M, N); same: (M, N) bool, where both tokens are equal: these cells get an outline.
        document_tokens, query_tokens: M and N strings. label: what the colours mean.
    """
    from matplotlib.patches import Rectangle

    rows, columns = weights.shape
    axes.spines[:].set_visible(True)
    # White is the smallest weight, as a softmax over a long text leaves every weight close to it.
    # What can be negative has two colours, white is zero.
    largest = float(weights.abs().max()) if weights.numel() else 1.0
    signed = bool((weights < 0).any())
    look: dict[str, Any] = {"cmap": "Blues"}
    if signed:
        look = {"cmap": "RdBu", "vmin": -largest, "vmax": largest}
    image = axes.imshow(weights.numpy(), aspect="auto", interpolation="nearest", **look)
    height = axes.figure.get_size_inches()[1]
    axes.figure.colorbar(image, ax=axes, label=label, shrink=min(1.0, 2.5 / height))
    for row, column in same.nonzero().tolist():
        place = (column - 0.46, row - 0.46)
        axes.add_patch(Rectangle(place, 0.92, 0.92, fill=False, ec=outline, lw=1))
    axes.tick_params(length=2, pad=1)
    # A "$" in a text would otherwise start a formula.
    text: dict[str, Any] = {"fontsize": font_size, "parse_math": False}
    axes.set_xticks(range(columns), query_tokens, rotation=90, **text)
    axes.set_yticks(range(rows), document_tokens, **text)
    axes.set(xlabel="query tokens", ylabel="document tokens")


class TextStep(NamedTuple):
    """One step of a beam search in texts, seen from a document.

    Attributes:
        step: from 1. alive: whether the document can still be found after it.
        best: the best beginning of the document at this step, "" where there is none; probability:
            its p(text | query); rank: its place among all that could be kept; None without one.
        kept: the best that the search went on with. kept_probability: of that one.
        limit_probability: of the last one that it went on with; None where all ended.
    """

    step: int
    alive: bool
    best: str
    probability: float | None
    rank: int | None
    kept: str
    kept_probability: float | None
    limit_probability: float | None


class GeneratedText(NamedTuple):
    """What a search generated in the end: a text, log p(text | query), the documents it names.

    `documents` are the ids of some of these, `n_documents` counts them all.
    """

    text: str
    log_probability: float
    documents: tuple[str, ...]
    n_documents: int


@dataclass(frozen=True, repr=False)
class Explained(Table):
    """Why a search ranks a document where it does.

    Attributes:
        query, id: what was asked.
        rank: the document's among the first `depth`; None = it is not among them.
        score: what the search gives it; None = the search cannot find it.
        hit: the document as a search among it alone finds it; best: the first hit of all.
        alignment: of the pair; None where the system has none.
        path: of a generative system, how its beam search went, in token ids (`SearchPath`).
        steps, generated: the same in texts; empty of other systems.
        reason: the above in a sentence or two.
    """

    query: str
    id: str
    rank: int | None
    score: float | None
    hit: Hit | None
    best: Hit | None
    alignment: AlignedPair | None
    path: Any = None
    steps: tuple[TextStep, ...] = ()
    generated: tuple[GeneratedText, ...] = ()
    reason: str = ""

    @property
    def lost(self) -> int | None:
        """The step, from 1, at which the beam lost the document; None if it did not."""
        return self.path.lost if self.path else None

    def to_pandas(self) -> "pandas.DataFrame":
        """What each part adds to the score of the document, and to that of the best one."""
        import pandas

        columns = {}
        for name, hit in (("document", self.hit), ("best", self.best)):
            parts: dict[str, float] = {}
            for share in hit.shares if hit else ():
                parts[share.text] = parts.get(share.text, 0.0) + share.value
            columns[name] = pandas.Series(parts, dtype=float)
        return pandas.DataFrame(columns).fillna(0.0)

    def steps_to_pandas(self) -> "pandas.DataFrame":
        """A row for each step of a beam search."""
        import pandas

        return pandas.DataFrame(self.steps, columns=TextStep._fields)

    def generated_to_pandas(self) -> "pandas.DataFrame":
        """A row for each text that a beam search generated."""
        import pandas

        return pandas.DataFrame(self.generated, columns=GeneratedText._fields)

    def __repr__(self) -> str:
        return self.reason

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.reason)}</p>{super()._repr_html_()}"

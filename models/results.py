"""The results of a `Retriever`: small typed objects that convert to pandas tables or plot.

pandas and matplotlib are imported by the methods that use them.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import Tensor

from gr_mvdr.analyzer import split_words
from gr_mvdr.decoding.search_trace import Hypothesis, SearchPath
from gr_mvdr.fields import json_values
from gr_mvdr.options import checked, make_printable
from gr_mvdr.passages import Passage
from gr_mvdr.relevance import PairAlignment, Prefix, divide
from models.base import Share

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

Matrix = Literal["alignment", "similarity", "product"]
_CELL = 0.16  # inches of a token's row or column
_LETTERS = 60  # characters of a text in a printed table
_LINE = 200  # characters of a printed hit
_LARGEST = 3  # shares shown in a notebook's table and in a reason
_SNIPPET = 30  # words


class Hit(NamedTuple):
    """A document that a search found.

    Attributes:
        rank: from 1.
        id, title: the document's id and title.
        snippet: the document's words that share the most words with the query.
        score: the score by which the system ranks.
        shares: the parts of the score, which sum to it.
        fields: what the document has besides id, title and text.
        passage: the document's best passage, with the snippet; None = documents are not split.
    """

    rank: int
    id: str
    title: str
    snippet: str
    score: float
    shares: tuple[Share, ...]
    fields: Mapping[str, Any] = {}
    passage: Passage | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes as values that JSON can hold."""
        shares = [share._asdict() for share in self.shares]
        return self._asdict() | {"shares": shares, "fields": json_values(self.fields)}

    def __repr__(self) -> str:
        named = " ".join(filter(None, (self.id, self.title)))
        line = " ".join(f"{self.rank}. {self.score:.4f} {named}: {self.snippet}".split())
        return make_printable(line if len(line) <= _LINE else f"{line[:_LINE]}…")


class Tabular:
    """A result that notebooks show as the table of its `to_pandas`."""

    def _repr_html_(self) -> str:
        return self.to_pandas().to_html(escape=True)  # type: ignore[attr-defined]


class Hits(list[Hit]):
    """The documents that a search found for a query, best first; prints as a table."""

    def __init__(self, query: str, hits: Iterable[Hit] = ()):
        super().__init__(hits)
        self.query = query

    def __repr__(self) -> str:
        heading = f"{count_of(len(self), 'document')} for {self.query!r}"
        if not self:
            return heading
        titles = ["title"] if any(hit.title for hit in self) else []
        table = self.to_pandas()[["rank", "score", "id", *titles, "snippet"]]
        for name in ("id", *titles, "snippet"):
            table[name] = table[name].map(make_printable)
        shown = table.to_string(index=False, float_format="%.4f", max_colwidth=_LETTERS)
        return f"{heading}\n{shown}"

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each document: the attributes of `Hit`, and each further field, as columns."""
        import pandas

        own = pandas.DataFrame(self, columns=Hit._fields).drop(columns="fields")
        fields = pandas.DataFrame([{**hit.fields} for hit in self], own.index)
        return own.join(fields.drop(columns=list(own), errors="ignore"))

    def to_dict(self) -> dict[str, Any]:
        """Returns the query and the attributes of each hit as values that JSON can hold."""
        return {"query": self.query, "hits": [hit.to_dict() for hit in self]}

    def _repr_html_(self) -> str:
        table = self.to_pandas()
        table["shares"] = table["shares"].map(_name_largest)
        return table.rename(columns={"shares": "largest shares"}).to_html(escape=True, index=False)


def _name_largest(shares: Sequence[Share]) -> str:
    largest = sorted(shares, key=lambda share: -abs(share.value))[:_LARGEST]
    return ", ".join(f"{share.text} {share.value:.3f}" for share in largest)


def find_snippet(query: str, text: str, words: int = _SNIPPET) -> str:
    """Finds the first passage of `words` words with the most distinct words of the query."""
    wanted, parts = set(split_words(query)), text.split()
    if len(parts) <= words:
        return " ".join(parts)
    matched = [wanted.intersection(split_words(part)) for part in parts]
    starts = range(0, len(parts) - words + 1, max(1, words // 3))
    best = max(starts, key=lambda start: len(set().union(*matched[start : start + words])))
    passage = " ".join(parts[best : best + words])
    return ("… " if best else "") + passage + ("" if best + words >= len(parts) else " …")


def count_of(number: int, noun: str) -> str:
    """Formats a number and its noun, in the plural unless it is one: "1 head", "2 heads"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


@dataclass(frozen=True, repr=False)
class EncodedText(Tabular):
    """The token vectors of a text.

    Attributes:
        tokens: n strings.
        vectors: (n, d) fp32 on the CPU.
        salience: (n,) the tokens' u (aligner Eq. 2); None = all one.
    """

    tokens: list[str]
    vectors: Tensor
    salience: Tensor | None = None

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row for each token: its salience, if there is one, and its vector."""
        import pandas

        own = {} if self.salience is None else {"salience": self.salience.numpy()}
        return pandas.DataFrame(own | dict(enumerate(self.vectors.T.numpy())), self.tokens)

    def __repr__(self) -> str:
        return f"EncodedText of {count_of(len(self.tokens), 'token')}, d = {self.vectors.shape[1]}"


@dataclass(repr=False)
class AlignedPair(PairAlignment):
    """S and A of one pair (Eq. 1), with its tokens as strings and a method to plot them.

    The tensors have B = 1 and no padding.

    Attributes:
        query_tokens: N strings.
        document_tokens: M strings.
        title: the title of figures.
    """

    query_tokens: list[str] = field(default_factory=list)
    document_tokens: list[str] = field(default_factory=list)
    title: str = ""

    @classmethod
    def of(
        cls, pair: PairAlignment, strings: Callable[[Sequence[int]], list[str]], title: str
    ) -> "AlignedPair":
        """Converts the alignment of one pair: fp32 on the CPU, without padding."""
        values = {part.name: getattr(pair, part.name) for part in fields(PairAlignment)}
        prefix, tensors = values.pop("prefix"), {name: x.cpu() for name, x in values.items()}
        real = {side: tensors[f"{side}_mask"][0] for side in ("document", "query")}
        for name, values in tensors.items():
            if values.is_floating_point():
                tensors[name] = values.float()
            if values.dim() == 4:
                tensors[name] = tensors[name][:, :, real["document"]][..., real["query"]]
            elif values.dim() == 2:
                tensors[name] = values[:, real[name.split("_")[0]]]
        if prefix is not None:
            both = (x.cpu().float()[:, :, real["document"]] for x in vars(prefix).values())
            prefix = Prefix(*both)
        documents, queries = (strings(tensors[f"{side}_ids"][0].tolist()) for side in real)
        named = {"query_tokens": queries, "document_tokens": documents, "title": title}
        return cls(**tensors, prefix=prefix, **named)

    @checked
    def matrix(self, what: Matrix = "alignment", head: int | None = None) -> Tensor:
        """Returns one matrix (M, N) of the pair, on the CPU.

        Args:
            what: "alignment" A, "similarity" S, or "product" S ⊙ A / Z, which sums to the
                relevance.
            head: None = all heads: the mean of A or S, the sum of the product.
        """
        if what == "product":
            each = divide(self.similarity * self.alignment, self.normaliser[:, None, None, None])[0]
            return (each.sum(0) if head is None else each[head]).cpu()
        values = getattr(self, what)[0]
        return (values.mean(0) if head is None else values[head]).cpu()

    def plot(
        self, what: str = "alignment", head: int | None = None, axes: "Axes | None" = None
    ) -> "Axes":
        """Draws one matrix, document tokens as rows; equal tokens are framed (Figure 5).

        Args:
            what, head: see `matrix`.
            axes: the axes to draw into; None = a new pyplot figure.
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
        """The size of a figure of the pair, in inches."""
        rows, columns = len(self.document_tokens), len(self.query_tokens)
        return max(4.0, 2.5 + _CELL * columns), max(2.5, 1.2 + _CELL * rows)

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the contribution of each token pair to the relevance, document tokens as rows."""
        import pandas

        values = self.matrix("product").numpy()
        return pandas.DataFrame(values, self.document_tokens, self.query_tokens)

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


def draw_alignment(
    axes: "Axes",
    weights: Tensor,
    same: Tensor,
    document_tokens: Sequence[str],
    query_tokens: Sequence[str],
    label: str,
) -> None:
    """Draws a matrix of token pairs, document tokens as rows, with a colour bar (Figure 5).

    Args:
        weights: (M, N).
        same: (M, N) bool, whether both tokens are equal; such cells get an outline.
        document_tokens, query_tokens: M and N strings.
        label: the label of the colour bar.
    """
    from matplotlib.patches import Rectangle

    rows, columns = weights.shape
    axes.spines[:].set_visible(True)
    # White is the smallest weight, since a softmax over a long text gives only small weights.
    # Weights of both signs have two colours; white is zero.
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
        axes.add_patch(Rectangle(place, 0.92, 0.92, fill=False, ec="black", lw=1))
    axes.tick_params(length=2, pad=1)
    # A "$" in a text would otherwise start a formula.
    text: dict[str, Any] = {"fontsize": 6.5, "parse_math": False}
    axes.set_xticks(range(columns), query_tokens, rotation=90, **text)
    axes.set_yticks(range(rows), document_tokens, **text)
    axes.set(xlabel="query tokens", ylabel="document tokens")


def spoken(text: str) -> str:
    """Quotes a token for use in a sentence, without the tokeniser's word marker."""
    return f"“{re.sub('^(▁|Ġ|##)(?=.)', '', text)}”"


def percent(probability: float) -> str:
    """Formats a percentage with two digits and no power of ten: "0.0008 %"."""
    return f"{Decimal(f'{100 * probability:.2g}'):f} %" if probability >= 1e-8 else "< 0.000001 %"


@dataclass(frozen=True, repr=False)
class Explained(Tabular):
    """An explanation of a document's rank in a search; prints as one to three sentences.

    Attributes:
        query: the query's text.
        id: the document's id.
        rank: the document's rank among the first `depth`; None = it is not among them.
        hit: the document's hit, if need be from a search restricted to it; None = the search
            cannot find it.
        best: the first hit of the unrestricted search.
        alignment: the pair's alignment; None if the system has none.
        path: the beam search of a generative system, in token ids (`SearchPath`).
        text_of: maps token ids to text.
    """

    query: str
    id: str
    rank: int | None
    depth: int
    hit: Hit | None
    best: Hit | None
    alignment: AlignedPair | None
    path: SearchPath | None
    text_of: Callable[[tuple[int, ...]], str]

    @property
    def score(self) -> float | None:
        """The document's score in the search; None = the search cannot find it."""
        return self.hit.score if self.hit else None

    @property
    def reason(self) -> str:
        """The rank, the step that lost the document, and the shares that make the difference."""
        score = f", with {self.score:.4g}" if self.hit else ""
        if self.rank == 1:
            place = f"{self.id} is the first document{score}."
        else:
            rank = f"number {self.rank}" if self.rank else f"not among the first {self.depth}"
            best = f"; the first, {self.best.id}, has {self.best.score:.4g}" if self.best else ""
            place = f"{self.id} is {rank}{score}{best}."
        return " ".join(filter(None, [place, self._lost(), self._shares()]))

    def _lost(self) -> str:
        """Describes where a beam search lost the document, and to which hypotheses."""
        if not (self.path and self.path.lost):
            return ""

        def describe(prefix: Hypothesis, rank: str = "") -> str:
            return f"{spoken(self.text_of(prefix.tokens))} ({percent(prefix.probability)}{rank})"

        step, number = self.path.lost_step, self.path.lost
        if step.best is None:
            return f"At step {number} the beam held no beginning of the document."
        lost = describe(step.best, f", rank {step.rank}")
        sentence = f"Its best beginning left the beam at step {number}: {lost}"
        if not step.kept:
            return f"{sentence}."
        first, last = describe(step.kept[0]), describe(step.limit or step.kept[-1])
        return f"{sentence}; the beam went on with {first} down to {last}."

    def _shares(self) -> str:
        """Describes the shares that differ most from those of the first document."""
        if not (self.hit and self.best):
            return ""
        table = self.to_pandas()
        lost = (table.best - table.document).sort_values(ascending=False, kind="stable")
        parts = [
            f"{spoken(text)} ({table.document[text]:.3g} against {table.best[text]:.3g})"
            for text in lost[lost > 0].index[:_LARGEST]
        ]
        return f"It loses most by {', '.join(parts)}." if parts else ""

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns each part's contribution to the scores of the document and of the best one."""
        import pandas

        columns = {}
        for name, hit in (("document", self.hit), ("best", self.best)):
            shares = hit.shares if hit else ()
            values = pandas.Series([s.value for s in shares], [s.text for s in shares], dtype=float)
            columns[name] = values.groupby(level=0, sort=False).sum()
        return pandas.DataFrame(columns).fillna(0.0)

    def steps_to_pandas(self) -> "pandas.DataFrame":
        """Returns a row for each step of a beam search: the document's best prefix, the beam."""
        import pandas

        def tell(one: Hypothesis | None) -> tuple[str, float | None]:
            return (self.text_of(one.tokens), one.probability) if one else ("", None)

        rows = [
            (number, step.alive, *tell(step.best), step.rank, *tell(kept), tell(step.limit)[1])
            for number, step in enumerate(self.path.steps if self.path else (), start=1)
            for kept in step.kept[:1] or (None,)
        ]
        columns = ["step", "alive", "best", "probability", "rank", "kept", "kept_probability"]
        return pandas.DataFrame(rows, columns=[*columns, "limit_probability"])

    def generated_to_pandas(self) -> "pandas.DataFrame":
        """Returns a row for each text that a beam search generated."""
        import pandas

        rows = [
            (self.text_of(one.tokens), one.log_prob, one.documents, one.n_documents)
            for one in (self.path.generated if self.path else ())
        ]
        columns = ["text", "log_probability", "documents", "n_documents"]
        return pandas.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        return self.reason

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.reason)}</p>{super()._repr_html_()}"

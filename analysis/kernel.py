"""Kernelised relevance: Σ S ⊙ softmax as inner products of features (gr_as_mvdr Lemma 5.2, App. C).

With a feature map φ for which φ(x)ᵀφ(y) ≈ exp(xᵀy), with F(x) = value φ(key)ᵀ and
p_i = Σ_j φ(d_i)ᵀφ(q_j) (Eq. 25):

    rel(d, q) = Σ_ij d_iᵀ q_j softmax(d_iᵀ Q)_j ≈ Σ_i 1/p_i tr(F(d_i)ᵀ Σ_j F(q_j))

No document token meets a query token in it. Feature maps here return log φ: features of long
vectors are too large or too small for any float, but a factor that a document token's features
share cancels in its row, and one that a feature has on one side cancels against its inverse on the
other. So every row is scaled to a largest feature of 1, and p_i ≥ 1.

By the trace inequality the lemma goes on to rel(d, q) ≤ Σ_ij 1/(p̂_i p̂_j) ‖F(d_i)‖ ‖F(q_j)‖, with
‖F‖² = tr(FᵀF). It does not define p̂; here p̂_i = p_i and p̂_j = 1, for which it is exact.

A multi-vector system's own alignment may be another; here it has the softmax of the lemma, and no
salience.

Retrieval by this relevance: but for the weights 1/p_i the sum over i is an inner product of a
document's vector and a query's, which a maximum inner product search could find. The paper leaves
this open. p_i depends on the query, so its mean over a sample of queries replaces it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import TYPE_CHECKING, ClassVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.evaluation import average_metrics, judge
from analysis.figures import COLOURS, MARKERS, GalleryEntry, legend_below, page_figure, styled
from analysis.statistics import spearman, spread
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import batch_by_length, pad
from gr_mvdr.evaluation.ranking import Ranking, best_places
from gr_mvdr.options import Count, Size, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Factors, relevance, similarity
from gr_mvdr.scoring import Scoring, all_pairs_relevance
from gr_mvdr.token_vectors import TokenVectors, stack
from models.base import Table

if TYPE_CHECKING:
    from data_modules.module import RetrievalDataModule
    from models.multi_vector import MultiVector

# Vectors (…, l) → log φ (…, m) of a feature map φ.
LogFeatures = Callable[[Tensor], Tensor]
# Documents (B, M, …) → (B documents, C queries) scores.
Search = Callable[[TokenVectors], Tensor]

EXACT = "exact"  # the name of the search by the softmax itself
DEPTH = 10  # documents that the metrics look at
QUALITY = ("mrr@10", "recall@10")
_SAMPLE = 256  # training queries whose mean normaliser replaces a query's own
# Documents at once: with 128 × 256 numbers each, 4 MB of vectors.
_DOCUMENTS = 32
# What the kernels estimate.
_SOFTMAX = Scoring(Softmax("document_to_query"))


class KernelVectors:
    """Φ(d) = Σ_i F(d_i) / p̂_i and Ψ(q) = Σ_j F(q_j), flattened; Φ(d)ᵀΨ(q) ranks documents.

    p̂_i = φ(d_i)ᵀ · mean over sampled queries of Σ_j φ(q_j). Ψ is scaled by a factor that is the
    query's own, which changes no ranking. With the query itself as the sample, Φ(d)ᵀΨ(q) is
    `analysis.kernel.kernel_relevance`. Salience takes no part.
    """

    def __init__(self, log_features: LogFeatures, sample: TokenVectors):
        """
        Args:
            log_features: log φ of the keys, see `analysis.kernel`.
            sample: queries (C, N, …).
        """
        self.log_features = log_features
        logarithms = log_features(keys_of(sample)[sample.mask])
        # A feature's scale moves from the queries' side to the documents': no product changes.
        self.shift = logarithms.amax(0)
        self.mass = (logarithms - self.shift).exp().sum(0) / len(sample)

    def documents(self, texts: TokenVectors) -> Tensor:
        """(B, M, …) documents → (B, k·m) Φ(d)."""
        features = row_features(self.log_features(keys_of(texts)) + self.shift)
        features = features / (features @ self.mass).unsqueeze(-1)  # 1/p̂_i
        return self._flat(texts, features)

    def queries(self, texts: TokenVectors) -> Tensor:
        """(C, N, …) queries → (C, k·m) Ψ(q)."""
        logarithms = self.log_features(keys_of(texts)) - self.shift
        logarithms = logarithms.masked_fill(~texts.mask.unsqueeze(-1), -torch.inf)
        return self._flat(texts, (logarithms - logarithms.amax((1, 2), keepdim=True)).exp())

    def search(self, queries: TokenVectors) -> Search:
        """Scores of documents by inner products with these queries."""
        asked = self.queries(queries)
        return lambda documents: self.documents(documents) @ asked.T

    @staticmethod
    def _flat(texts: TokenVectors, features: Tensor) -> Tensor:
        values = texts.vectors * texts.mask.unsqueeze(-1)
        return (values.transpose(1, 2) @ features).flatten(1)


def keys_of(texts: TokenVectors) -> Tensor:
    """(…, l) what the alignment is made of."""
    return texts.vectors if texts.keys is None else texts.keys


def row_features(logarithms: Tensor) -> Tensor:
    """(…, m) log φ → φ, each row scaled to a largest feature of 1."""
    return (logarithms - logarithms.amax(-1, keepdim=True)).exp()


def retrieval_quality(
    model: "MultiVector",
    data: "RetrievalDataModule",
    queries: int,
    feature_maps: Callable[[int], dict[str, LogFeatures]],
) -> dict[str, dict[str, float]]:
    """Feature map, or "exact" → the quality of searching the whole corpus by it.

    Args:
        queries: of the first test split, evenly spread.
        feature_maps: the keys' size → name → log φ.
    """
    split = data.test_splits[0]
    chosen = spread(data.test_queries(split), queries)
    sample = spread(data.queries(data.train_split), _SAMPLE)
    depth = DEPTH + data.drop_identical
    rankings = kernel_rankings(model, data.documents, chosen, sample, feature_maps, depth)
    found = {}
    for name, ranking in rankings.items():
        quality = average_metrics(judge(ranking, data, split, chosen, QUALITY))
        found[name] = {key: quality[key] for key in QUALITY} | {"queries": len(chosen)}
    return found


@torch.inference_mode()
def kernel_rankings(
    model: "MultiVector",
    documents: Table,
    queries: Table,
    sample: Table,
    feature_maps: Callable[[int], dict[str, LogFeatures]],
    depth: int = DEPTH,
) -> dict[str, Ranking]:
    """The best documents of each query by every feature map, and by the softmax itself ("exact").

    Document vectors come and go in small groups; only scores are kept. All documents are encoded
    once more, which is why `analysis.kernel.Kernel` leaves out large corpora.

    Args:
        documents, queries: column tables with `id` and `tokens`.
        sample: queries, whose mean normaliser replaces each query's own.
        feature_maps: as `retrieval_quality`. depth: documents a query.
    """
    (texts, names), (sampled, _) = (_encoded(model, table) for table in (queries, sample))
    searches: dict[str, Search] = {}
    for name, log_features in feature_maps(keys_of(texts).shape[-1]).items():
        searches[name] = KernelVectors(log_features, sampled).search(texts)
    searches[EXACT] = lambda found: all_pairs_relevance(found, texts, _SOFTMAX)
    scores: dict[str, list[Tensor]] = {name: [] for name in searches}
    ids, all_ids = [], documents["id"][:]
    for rows, found in _encoded_documents(model, documents):
        ids += [all_ids[row] for row in rows]
        for name, search in searches.items():
            scores[name].append(search(found).double().cpu())
    rankings = {}
    for name, parts in scores.items():
        results = {}
        for query, column in zip(names, torch.cat(parts).numpy().T, strict=True):
            best = best_places(column, depth, ids.__getitem__)
            results[query] = {ids[place]: float(column[place]) for place in best}
        rankings[name] = Ranking(results)
    return rankings


def _encoded(model: "MultiVector", queries: Table) -> tuple[TokenVectors, list[str]]:
    """Queries as one padded batch on the model's device, without salience, and their ids."""
    names, texts = zip(*model.encoded_queries(queries), strict=True)
    return replace(stack(texts).to(model.device), salience=None), list(names)


def _encoded_documents(
    model: "MultiVector", documents: Table
) -> Iterator[tuple[list[int], TokenVectors]]:
    """Rows of documents of like length, and their vectors."""
    tokens = [model.cut_document(text) for text in documents["tokens"]]
    for rows in track(batch_by_length([*map(len, tokens)], _DOCUMENTS), "searching by kernels"):
        ids, mask = (part.to(model.device) for part in pad([tokens[row] for row in rows]))
        yield rows, replace(model.encode_documents(ids, mask), salience=None)


# Names of feature maps; random ones are named after their number.
ELU, UNIFORM = "elu", "uniform"
_BATCH = 8  # pairs at once
TITLES = {
    "error": "relative error",
    "rank_correlation": "rank correlation over pairs",
    "mrr@10": "MRR@10, whole corpus",
}
# Feature map → its line's label, colour and style.
LINES = {
    ELU: ("elu + 1", COLOURS[1], "--"),
    UNIFORM: ("all weights equal", COLOURS[3], "-."),
    EXACT: ("softmax itself", COLOURS[2], ":"),
}


def log_elu_features(vectors: Tensor) -> Tensor:
    """(…, l) log φ of φ = elu + 1, one feature a dimension.

    The paper writes φ = elu(·) (Lemma 5.2), which is negative at negative numbers: p_i of Eq. 25
    could be zero or negative. It is elu + 1 that is positive.
    """
    return torch.where(vectors > 0, vectors.clamp(min=0).log1p(), vectors)


def log_uniform_features(vectors: Tensor) -> Tensor:
    """(…, 1) log φ, φ = 1: every query token weighs the same. How little a softmax may matter."""
    return torch.zeros_like(vectors[..., :1])


def log_random_features(vectors: Tensor, projections: Tensor) -> Tensor:
    """(…, m) log φ of positive random features, φ_r(x) = exp(ω_rᵀx − ‖x‖²/2) / √m.

    E φ(x)ᵀφ(y) = exp(xᵀy), with a relative variance of (exp ‖x + y‖² − 1) / m for independent ω
    (Choromanski et al., *Rethinking Attention with Performers*, Lemma 2).

    Args:
        vectors: (…, l); projections: (m, l) ω.
    """
    half_norm = vectors.square().sum(-1, keepdim=True) / 2
    count = torch.tensor(len(projections), dtype=vectors.dtype, device=vectors.device)
    return vectors @ projections.to(vectors).T - half_norm - count.log() / 2


def orthogonal_projections(count: int, size: int, seed: int) -> Tensor:
    """(count, size) fp64 Gaussian ω, orthogonal to one another within blocks of `size` rows.

    Each row on its own is N(0, I); that they are orthogonal lowers the variance (Choromanski et
    al., Theorem 2).
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-count // size)
    gaussian = torch.randn(blocks, size, size, generator=generator, dtype=torch.float64)
    directions, upper = torch.linalg.qr(gaussian)
    # With the signs of R's diagonal the directions are uniform.
    directions = directions * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(count, size, generator=generator, dtype=torch.float64).norm(dim=-1)
    return directions.flatten(0, 1)[:count] * lengths.unsqueeze(-1)


def feature_maps(size: int, features: Sequence[int], seed: int = 0) -> dict[str, LogFeatures]:
    """Name → log φ of vectors of `size`: a constant, elu + 1, random features of each number."""
    maps = {
        str(count): partial(
            log_random_features, projections=orthogonal_projections(count, size, seed)
        )
        for count in features
    }
    return {UNIFORM: log_uniform_features, ELU: log_elu_features} | maps


def kernel_relevance(factors: Factors, log_features: LogFeatures) -> Tensor:
    """(B,) Σ_h Σ_i 1/p_i tr(F(d_i)ᵀ Σ_j F(q_j)), heads summed (Lemma 5.2, Eq. 25).

    Args:
        factors: of B pairs; padding may hold anything finite.
        log_features: log φ of the keys.
    """
    real = factors.query_mask[:, None, :, None]
    queries = log_features(factors.query_keys).masked_fill(~real, -torch.inf)
    shift = queries.amax(-2, keepdim=True)  # (B, H, 1, m), the same for all tokens of the query
    queries = (queries - shift).exp()
    documents = row_features(log_features(factors.document_keys) + shift)
    total = factors.query_values.transpose(-1, -2) @ queries  # Σ_j F(q_j), (B, H, k, m)
    rows = ((factors.document_values @ total) * documents).sum(-1)
    rows = rows / (documents * queries.sum(-2, keepdim=True)).sum(-1)
    return (rows * factors.document_mask[:, None]).sum((1, 2))


def log_trace_bound(factors: Factors, log_features: LogFeatures) -> Tensor:
    """(B,) log Σ_h Σ_ij 1/p_i ‖F(d_i)‖ ‖F(q_j)‖ ≥ log |`kernel_relevance`| (Lemma 5.2).

    ‖F(x)‖ = ‖value‖ ‖φ(key)‖. A logarithm, since the bound may be larger than any float.

    Args:
        factors, log_features: as of `kernel_relevance`.
    """

    def log_norms(values: Tensor, logarithms: Tensor) -> Tensor:
        return values.norm(dim=-1).log() + (2 * logarithms).logsumexp(-1) / 2

    documents, queries = map(log_features, (factors.document_keys, factors.query_keys))
    queries = queries.masked_fill(~factors.query_mask[:, None, :, None], -torch.inf)
    normaliser = (documents + queries.logsumexp(-2, keepdim=True)).logsumexp(-1)  # log p_i
    rows = log_norms(factors.document_values, documents) - normaliser  # (B, H, M)
    rows = rows.masked_fill(~factors.document_mask[:, None], -torch.inf)
    columns = log_norms(factors.query_values, queries)  # (B, H, N), −inf at padding
    return (rows.logsumexp(-1) + columns.logsumexp(-1)).logsumexp(1)


def softmax_relevance(factors: Factors) -> Tensor:
    """(B,) what is estimated: Σ S ⊙ softmax of keys over query tokens, heads summed (Eq. 16)."""
    masks = factors.document_mask[:, None], factors.query_mask[:, None]
    weights = Softmax("document_to_query")(
        similarity(factors.document_keys, factors.query_keys), *masks
    )
    matrix = similarity(factors.document_values, factors.query_values)
    return relevance(matrix, weights).sum(1)


def squared_key_norm(factors: Factors) -> Tensor:
    """(B,) mean of ‖d_i + q_j‖² over the pair's keys and heads: sets how many features it takes."""
    documents, queries = factors.document_keys.double(), factors.query_keys.double()
    squares = documents.square().sum(-1)[..., :, None] + queries.square().sum(-1)[..., None, :]
    squares = squares + 2 * documents @ queries.transpose(-1, -2)
    real = (factors.document_mask[:, :, None] & factors.query_mask[:, None, :])[:, None]
    heads = squares.shape[1]
    return (squares * real).sum((1, 2, 3)) / (heads * real.sum((1, 2, 3)))


@part("analysis")
class Kernel(Analysis):
    """How well does a kernel replace the alignment, in relevance and in retrieval? (Lemma 5.2)

    Only a multi-vector system retrieves: a generative one's document vectors depend on the query.

    Args:
        pairs: how many test pairs of the first test split.
        features: numbers of random features.
        retrieval_queries: test queries, evenly spread, that search the whole corpus; 0 = none.
        retrieval_features: as `features`, for retrieval.
        most_documents: a larger corpus is not searched, as it would be encoded once more; the
            estimates stay.
    """

    name, title = "kernel", "Kernelised relevance"
    reading = (
        "How well the relevance is approximated when softmax attention is replaced by a kernel "
        "(Lemma 5.2), by the number of features."
    )
    metrics = (
        Metric(
            "error", "The distance of the approximate relevance from the true one, relative to it."
        ),
        Metric(
            "bound_share",
            "How much of the bound that the trace inequality sets (Lemma 5.2) the relevance "
            "reaches: 1 if it is tight, 0 if it says nothing.",
        ),
        Metric(
            "bound_correlation",
            "Does that bound order the pairs as the relevance does? A rank correlation.",
        ),
        Metric(
            "rank_correlation",
            "Do two scores order the candidates alike? 1: in the same order, 0: without relation.",
        ),
        Metric(
            "squared_key_norm",
            "The mean squared length of the sum of two keys: the larger, the harder the softmax is "
            "to approximate.",
        ),
    )
    words: ClassVar[dict[str, str]] = {
        "elu": "Softmax replaced by the feature map elu + 1.",
        "exact": "With the softmax itself, nothing replaced.",
        "uniform": "Every token aligned with all others alike: what no attention would reach.",
        "features #": "Softmax replaced by this number of random features.",
    }

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        # A query generator's softmax is not over the query's tokens.
        generates = getattr(subject.model, "generates", None)
        return subject.model.paradigm == "multi_vector" or generates == "document"

    def __init__(
        self,
        subject: Subject,
        pairs: Count,
        features: Sequence[Size] = (16, 64, 256, 1024),
        retrieval_queries: Count = 0,
        retrieval_features: Sequence[Size] = (16, 64, 256),
        most_documents: Count = 20_000,
    ):
        self.model, self.data = subject.model, subject.data
        self.pairs, self.features = pairs, features
        self.retrieval_features = retrieval_features
        retrieves = self.model.paradigm == "multi_vector"
        searchable = retrieves and len(self.data.documents) <= most_documents
        self.queries = retrieval_queries if searchable else 0

    def finish(self) -> Findings:
        """The table `kernel`, its metrics and curves."""
        rows, norm = self._estimates()
        if not rows:
            return Findings()
        if self.queries:
            maps = partial(feature_maps, features=self.retrieval_features)
            found = retrieval_quality(self.model, self.data, self.queries, maps)
            for name, values in found.items():
                rows[name] = rows.get(name, {"features": name}) | values
        flat = {"squared_key_norm": norm}
        for name, row in rows.items():
            place = f"features_{name}" if name.isdigit() else name
            for key in ("error", "rank_correlation", "bound_share", "bound_correlation", "mrr@10"):
                flat[f"{place}/{key}"] = row.get(key, float("nan"))
        table = list(rows.values())
        figures = [(kernel_curves(table), GalleryEntry("kernel", self.title, caption(norm)))]
        return Findings(named(self.name, flat), {"kernel": table}, figures)

    @torch.inference_mode()
    def _estimates(self) -> tuple[dict[str, Row], float]:
        """Feature map → its row: `error` ‖estimate − truth‖ / ‖truth‖ over pairs and
        `rank_correlation`; of the trace inequality `bound_share`, ‖its left side‖ / ‖its right
        side‖, and `bound_correlation`, the right side's rank correlation with the truth. And the
        mean over pairs of ‖d_i + q_j‖².
        """
        model, data, maps = self.model.eval(), self.data, {}
        split, parts = data.test_splits[0], defaultdict(list)
        _, batches = data.test_pairs(split, self.pairs, _BATCH, covers=model.covers)
        for batch in track(batches, "kernelising pairs"):
            factors = model.factors(batch.to(model.device))
            maps = maps or feature_maps(factors.query_keys.shape[-1], self.features)
            values = {name: kernel_relevance(factors, one) for name, one in maps.items()}
            values |= {f"{name} bound": log_trace_bound(factors, one) for name, one in maps.items()}
            values |= {"truth": softmax_relevance(factors), "norm": squared_key_norm(factors)}
            for name, value in values.items():
                parts[name].append(value.double().cpu())
        if not parts:
            return {}, float("nan")
        found = {name: torch.cat(values) for name, values in parts.items()}
        truth, norm = found.pop("truth"), float(found.pop("norm").mean())
        rows = {}
        for name in maps:
            estimate, bound = found[name], found[f"{name} bound"]
            rows[name] = {
                "features": name,
                "error": float((estimate - truth).norm() / truth.norm()),
                "rank_correlation": spearman(estimate, truth),
                "bound_share": float((estimate.norm().log() - (2 * bound).logsumexp(0) / 2).exp()),
                "bound_correlation": spearman(bound, truth),
                "pairs": len(truth),
            }
        return rows, norm


def caption(squared_key_norm: float) -> str:
    """How to read the curves, with the scale of this system's keys."""
    features = f"10^{squared_key_norm / log(10):.1f}"
    return (
        "Σ S ⊙ softmax with the exponential replaced by an inner product of features (Lemma 5.2): "
        "the points are positive random features, the dashed line is elu + 1, one feature a "
        "dimension; dash-dotted is no kernel at all, equal weights, above which an estimate says "
        "something. Error is ‖estimate − true‖ / ‖true‖ over pairs. Retrieval is by one inner "
        "product a document; the dotted line is the softmax's own relevance over all documents. "
        "The relative variance of the estimate of exp(d·q) is (exp ‖d + q‖² − 1) / features, and "
        f"‖d + q‖² is {squared_key_norm:.1f} on average here: it takes some {features} features "
        "until a typical weight's deviation is no larger than the weight."
    )


@styled
def kernel_curves(rows: Sequence[Row]) -> Figure:
    """The table `kernel`: error, rank correlation, and a third panel if there was retrieval."""
    measures = [name for name in TITLES if any(row.get(name) is not None for row in rows)]
    figure = page_figure()
    for axes, measure in zip(figure.subplots(1, len(measures)), measures, strict=True):
        _curve(axes, [row for row in rows if measure in row], measure)
    legend_below(figure, 4)
    return figure


def _curve(axes: Axes, rows: Sequence[Row], measure: str) -> None:
    found = {int(row["features"]): row[measure] for row in rows if row["features"].isdigit()}
    points, look = sorted(found.items()), {"color": COLOURS[0], "marker": MARKERS[0]}
    axes.plot(*zip(*points, strict=True), label="random features", **look)
    for row in rows:
        if row["features"] in LINES:
            label, colour, style = LINES[row["features"]]
            axes.axhline(row[measure], color=colour, linestyle=style, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([number for number, _ in points], [str(number) for number, _ in points])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="random features", title=TITLES[measure])
    values = [row[measure] for row in rows if row[measure] == row[measure]]
    top = max([*values, 0.0]) or 1.0
    axes.set_ylim(min([*values, 0.0]) * 1.08, top * 1.08)  # from zero, no marker cut off
    axes.grid()

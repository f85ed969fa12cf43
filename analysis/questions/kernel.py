"""Kernelised relevance: Σ S ⊙ softmax as inner products of features (gr_as_mvdr Lemma 5.2, App. C).

Let φ be a feature map with φ(x)ᵀφ(y) ≈ exp(xᵀy), F(x) = value φ(key)ᵀ, and
p_i = Σ_j φ(d_i)ᵀφ(q_j) (Eq. 25). Then

    rel(d, q) = Σ_ij d_iᵀ q_j softmax(d_iᵀ Q)_j ≈ Σ_i 1/p_i tr(F(d_i)ᵀ Σ_j F(q_j))

Apart from p_i, this compares no document token with a query token. Feature maps here return log φ,
since features of long vectors overflow or underflow any float. A factor shared by all features of a
document token cancels in its row, and a factor of one feature on one side cancels against its
inverse on the other side. So every row is scaled to a largest feature of 1, and p_i ≥ 1.

By the trace inequality, the lemma continues with rel(d, q) ≤ Σ_ij 1/(p̂_i p̂_j) ‖F(d_i)‖ ‖F(q_j)‖,
where ‖F‖² = tr(FᵀF). The lemma does not define p̂. Here p̂_i = p_i and p̂_j = 1; then the
inequality holds for the kernelised relevance.

A multi-vector system may use another alignment; this analysis gives it the softmax of the lemma,
without salience.

Apart from the weights 1/p_i, the sum over i is an inner product of a document vector and a query
vector, which maximum inner product search could handle. The paper leaves this open. Since p_i
depends on the query, retrieval replaces it by its mean over a sample of queries.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log

import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.figures import GalleryEntry, draw_lines, scale_by_doubling
from analysis.questions.analysis import Analysis, Findings, Subject
from analysis.runs.evaluation import average_metrics, judge
from analysis.statistics import RANK_CORRELATION, spearman, spread
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import batch_by_length, pad
from gr_mvdr.evaluation.metrics import ranking_metric
from gr_mvdr.evaluation.ranking import Ranking, best_documents
from gr_mvdr.measures import Metric
from gr_mvdr.options import Count, Size, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Factors, Scoring, all_pairs_relevance, relevance, similarity
from gr_mvdr.token_vectors import TokenVectors, stack
from models.base import Table
from models.multi_vector import MultiVector

# Vectors (…, l) → log φ (…, m) of a feature map φ.
LogFeatures = Callable[[Tensor], Tensor]

DEPTH = 10  # documents that MRR@10 looks at
_SAMPLE = 256  # queries whose mean normaliser replaces a query's own
_PAIRS, _DOCUMENTS = 8, 32  # batch sizes
_SOFTMAX = Scoring(Softmax("document_to_query"))
PANELS = {
    "error": "relative error",
    "rank_correlation": "rank correlation over pairs",
    "mrr@10": "MRR@10, whole corpus",
}
LINES = {"elu": "elu + 1", "uniform": "all weights equal", "exact": "softmax itself"}


def log_elu_features(vectors: Tensor) -> Tensor:
    """(…, l) log φ of φ = elu + 1, one feature per dimension.

    The paper writes φ = elu(·) (Lemma 5.2), which is negative at negative numbers: p_i of Eq. 25
    could be zero or negative. elu + 1 is positive.
    """
    return torch.where(vectors > 0, vectors.clamp(min=0).log1p(), vectors)


def log_uniform_features(vectors: Tensor) -> Tensor:
    """(…, 1) log φ for φ = 1, which weights all query tokens equally: the baseline."""
    return torch.zeros_like(vectors[..., :1])


def log_random_features(vectors: Tensor, projections: Tensor) -> Tensor:
    """(…, m) log φ of positive random features, φ_r(x) = exp(ω_rᵀx − ‖x‖²/2) / √m.

    E φ(x)ᵀφ(y) = exp(xᵀy), with a relative variance of (exp ‖x + y‖² − 1) / m for independent ω
    (Choromanski et al., *Rethinking Attention with Performers*, Lemma 2).

    Args:
        vectors: (…, l).
        projections: (m, l) ω.
    """
    half_norm = vectors.square().sum(-1, keepdim=True) / 2
    return vectors @ projections.to(vectors).T - half_norm - log(len(projections)) / 2


def orthogonal_projections(count: int, size: int, seed: int) -> Tensor:
    """(count, size) fp64 Gaussian ω, mutually orthogonal within blocks of `size` rows.

    Each row on its own is N(0, I); orthogonal rows lower the variance (Choromanski et al.,
    Theorem 2).
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-count // size)
    gaussian = torch.randn(blocks, size, size, generator=generator, dtype=torch.float64)
    directions, upper = torch.linalg.qr(gaussian)
    # Multiplying by the signs of R's diagonal makes the directions uniform.
    directions = directions * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(count, size, generator=generator, dtype=torch.float64).norm(dim=-1)
    return directions.flatten(0, 1)[:count] * lengths.unsqueeze(-1)


def feature_maps(size: int, features: Sequence[int], seed: int = 0) -> dict[str, LogFeatures]:
    """Returns name → log φ for vectors of `size`: constant, elu + 1, and random features."""
    maps: dict[str, LogFeatures] = {"uniform": log_uniform_features, "elu": log_elu_features}
    for count in features:
        projections = orthogonal_projections(count, size, seed)
        maps[str(count)] = partial(log_random_features, projections=projections)
    return maps


def query_mass(logarithms: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Computes Σ_j φ(q_j), each feature divided by a factor that documents must multiply by.

    Args:
        logarithms: (…, N, m) log φ of the queries' keys.
        mask: (…, N) bool.

    Returns:
        (…, 1, m) the factors' logarithms, and (…, m, 1) the scaled sum.
    """
    logarithms = logarithms.masked_fill(~mask.unsqueeze(-1), -torch.inf)
    shift = logarithms.amax(-2, keepdim=True)
    return shift, (logarithms - shift).exp().sum(-2).unsqueeze(-1)


def query_vectors(values: Tensor, logarithms: Tensor, mask: Tensor, shift: Tensor) -> Tensor:
    """(…, k, m) Ψ(q) = Σ_j F(q_j), scaled by a factor of each query, which changes no ranking.

    Args:
        values: (…, N, k).
        logarithms: (…, N, m).
        mask: (…, N) bool.
        shift: from `query_mass`.
    """
    logarithms = (logarithms - shift).masked_fill(~mask.unsqueeze(-1), -torch.inf)
    return values.transpose(-1, -2) @ (logarithms - logarithms.amax((-2, -1), keepdim=True)).exp()


def document_vectors(
    values: Tensor, logarithms: Tensor, mask: Tensor, shift: Tensor, mass: Tensor
) -> Tensor:
    """(…, k, m) Φ(d) = Σ_i F(d_i) / p_i, with p_i = φ(d_i)ᵀ mass.

    Args:
        values: (…, M, k).
        logarithms: (…, M, m).
        mask: (…, M) bool.
        shift, mass: from `query_mass`.
    """
    logarithms = logarithms + shift
    features = (logarithms - logarithms.amax(-1, keepdim=True)).exp()
    return (values * mask.unsqueeze(-1)).transpose(-1, -2) @ (features / (features @ mass))


def kernel_relevance(factors: Factors, log_features: LogFeatures) -> Tensor:
    """(B,) Σ_h Σ_i 1/p_i tr(F(d_i)ᵀ Σ_j F(q_j)), summed over heads (Lemma 5.2, Eq. 25).

    Args:
        factors: of B pairs; padding may hold any finite value.
        log_features: computes log φ of the keys.
    """
    documents, queries = factors.document_mask[:, None], factors.query_mask[:, None]
    logarithms = log_features(factors.query_keys)
    shift, mass = query_mass(logarithms, queries)
    asked = query_vectors(factors.query_values, logarithms, queries, shift)
    logarithms = log_features(factors.document_keys)
    stored = document_vectors(factors.document_values, logarithms, documents, shift, mass)
    return (stored * asked).sum((1, 2, 3))


def log_trace_bound(factors: Factors, log_features: LogFeatures) -> Tensor:
    """(B,) log Σ_h Σ_ij 1/p_i ‖F(d_i)‖ ‖F(q_j)‖ ≥ log |`kernel_relevance`| (Lemma 5.2).

    ‖F(x)‖ = ‖value‖ ‖φ(key)‖. The logarithm is returned since the bound may overflow any float.
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
    """(B,) the exact value: Σ S ⊙ softmax of keys over query tokens, summed over heads (Eq. 16)."""
    masks = factors.document_mask[:, None], factors.query_mask[:, None]
    keys = similarity(factors.document_keys, factors.query_keys)
    weights = Softmax("document_to_query")(keys, *masks)
    return relevance(similarity(factors.document_values, factors.query_values), weights).sum(1)


def squared_key_norm(factors: Factors) -> Tensor:
    """(B,) mean of ‖d_i + q_j‖² over keys and heads; determines how many features are needed."""
    squares, means = [], []
    for side in ("document", "query"):
        mask = getattr(factors, f"{side}_mask")[:, None, :, None].cpu().double()
        keys = getattr(factors, f"{side}_keys").cpu().double()
        share = mask / mask.sum(2, keepdim=True)
        squares.append((keys.square() * share).sum((2, 3)))
        means.append((keys * share).sum(2))
    return (sum(squares) + 2 * (means[0] * means[1]).sum(-1)).mean(1)


@torch.inference_mode()
def kernel_rankings(
    model: MultiVector,
    documents: Table,
    queries: Table,
    sample: Table,
    features: Sequence[int],
    depth: int = DEPTH,
) -> dict[str, Ranking]:
    """Ranks all documents by every feature map, and by the softmax itself ("exact").

    All documents are encoded again, in small groups; only their scores are kept.

    Args:
        documents, queries: column tables with `id` and `tokens`.
        sample: queries whose mean normaliser replaces each query's own.
        depth: documents kept per query.
    """

    def encoded(table: Table) -> tuple[TokenVectors, Sequence[str]]:
        names, texts, _ = zip(*model.encoded_queries(table), strict=True)
        return replace(stack(texts).to(model.device), salience=None), names

    (asked, names), (sampled, _) = encoded(queries), encoded(sample)
    kernels = {}
    for name, log_features in feature_maps(keys_of(asked).shape[-1], features).items():
        logarithms = log_features(keys_of(sampled)).flatten(0, 1)
        shift, mass = query_mass(logarithms, sampled.mask.flatten())
        logarithms = log_features(keys_of(asked))
        vectors = query_vectors(asked.vectors, logarithms, asked.mask, shift).flatten(1)
        kernels[name] = log_features, shift, mass, vectors
    scores, ids, all_ids = defaultdict(list), [], documents["id"][:]
    tokens = [model.cut_document(text) for text in documents["tokens"]]
    for rows in track(batch_by_length([*map(len, tokens)], _DOCUMENTS), "searching by kernels"):
        sides = (part.to(model.device) for part in pad([tokens[row] for row in rows]))
        texts = replace(model.encode_documents(*sides), salience=None)
        ids += [all_ids[row] for row in rows]
        scores["exact"].append(all_pairs_relevance(texts, asked, _SOFTMAX).cpu().double())
        for name, (log_features, shift, mass, vectors) in kernels.items():
            logarithms = log_features(keys_of(texts))
            stored = document_vectors(texts.vectors, logarithms, texts.mask, shift, mass)
            scores[name].append((stored.flatten(1) @ vectors.T).cpu().double())
    rankings = {}
    for name, parts in scores.items():
        columns = zip(names, torch.cat(parts).numpy().T, strict=True)
        rankings[name] = Ranking({q: best_documents(ids, column, depth) for q, column in columns})
    return rankings


def keys_of(texts: TokenVectors) -> Tensor:
    """(…, l) the vectors that the alignment is computed from."""
    return texts.vectors if texts.keys is None else texts.keys


@part("analysis")
@dataclass
class Kernel(Analysis):
    """How well does a kernel replace the alignment, in relevance and in retrieval? (Lemma 5.2)

    Retrieval is measured for multi-vector systems only: the document vectors of a generative
    system depend on the query.

    Args:
        pairs: the number of test pairs of the first test split.
        features: numbers of random features.
        retrieval_queries: test queries, evenly spread, that search the whole corpus; 0 = none.
        most_documents: a larger corpus is not searched, since it would be encoded again; pairs are
            still measured.
    """

    pairs: Count
    features: Sequence[Size] = (16, 64, 256)
    retrieval_queries: Count = 0
    most_documents: Count = 20_000

    name, title = "kernel", "Kernelised relevance"
    reading = "How well a kernel in place of the softmax approximates the relevance (Lemma 5.2)."
    metrics = (
        Metric("error", "‖estimate − true‖ / ‖true‖ over the relevances of pairs: 0 is exact."),
        Metric(
            "bound_share",
            "The share of the trace inequality's bound (Lemma 5.2) that the relevance reaches.",
        ),
        Metric("bound_correlation", "A rank correlation of that bound with the relevance."),
        RANK_CORRELATION,
        ranking_metric("mrr@10"),
        Metric(
            "squared_key_norm",
            "The mean squared length of two keys' sum: if large, the softmax is hard to replace.",
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        # A query generator's softmax is not over the query's tokens.
        model = subject.model
        return model.paradigm == "multi_vector" or model.generates == "document"

    def finish(self) -> Findings:
        values = self._estimates()
        if not values:
            return Findings()
        truth, norm = values.pop("truth"), float(values.pop("norm").mean())
        rows = {
            name: {
                "error": float((estimate - truth).norm() / truth.norm()),
                "rank_correlation": spearman(estimate, truth),
                "bound_share": float((estimate.norm().log() - (2 * bound).logsumexp(0) / 2).exp()),
                "bound_correlation": spearman(bound, truth),
            }
            for name, (estimate, bound) in values.items()
        }
        model, data = self.subject.model, self.subject.data
        searchable = len(data.documents) <= self.most_documents
        if self.retrieval_queries and searchable and model.paradigm == "multi_vector":
            queries = self.subject.queries(self.retrieval_queries)
            sample = spread(data.evaluation.tuning_queries(), _SAMPLE)
            depth = DEPTH + data.drop_identical
            tables = data.documents, queries, sample, self.features
            for name, ranking in kernel_rankings(model, *tables, depth).items():
                ranking = model.passages.rank(ranking)
                judged = judge(ranking, data, self.subject.split, queries, ["mrr@10"])
                rows.setdefault(name, {})["mrr@10"] = average_metrics(judged)["mrr@10"]
        numbers = self.rows({"squared_key_norm": norm})
        for name, row in rows.items():
            numbers += self.rows(row, f"features_{name}" if name.isdigit() else name)
        caption = CAPTION.format(norm, norm / log(10))
        figures = [(kernel_curves(rows), GalleryEntry("kernel", self.title, caption))]
        return self.findings(numbers, figures=figures)

    def _estimates(self) -> dict[str, Tensor]:
        """Returns feature map → (2, B) fp64, each pair's estimate and the logarithm of its bound;
        "truth" and "norm" → (B,) relevance and squared key norm. {} without pairs.
        """
        maps, parts = {}, defaultdict(list)
        for batch in self.subject.pairs(self.pairs, _PAIRS, "kernelising pairs"):
            factors = self.subject.model.factors(batch)
            maps = maps or feature_maps(factors.query_keys.shape[-1], self.features)
            for name, features in maps.items():
                both = kernel_relevance(factors, features), log_trace_bound(factors, features)
                parts[name].append(torch.stack(both))
            parts["truth"].append(softmax_relevance(factors))
            parts["norm"].append(squared_key_norm(factors))
        return {name: torch.cat(values, -1).cpu().double() for name, values in parts.items()}


CAPTION = (
    "The exponential of the softmax is replaced by an inner product of features: positive random "
    "features by their number, elu + 1, equal weights. Retrieval is one inner product a document. "
    "The relative variance of the estimate of exp(d·q) is (exp ‖d + q‖² − 1) / features, and "
    "‖d + q‖² is {:.1f} on average here: a typical weight needs some 10^{:.1f} features."
)


def kernel_curves(rows: dict[str, dict[str, float]]) -> Figure:
    """Plots error, rank correlation and MRR@10 against the number of random features."""
    counts = [int(name) for name in rows if name.isdigit()] or [1]
    points = [
        {"panel": title, "line": LINES.get(name, "random features"), "x": x, "y": row[measure]}
        for measure, title in PANELS.items()
        for name, row in rows.items()
        if measure in row
        for x in ([int(name)] if name.isdigit() else counts)  # other maps are horizontal lines
    ]
    figure = draw_lines(DataFrame(points), "", "random features", "", shared=False)
    for axes in figure.axes:
        scale_by_doubling(axes, counts)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    return figure

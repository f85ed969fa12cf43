"""Does a score grow with the document's length, and which document tokens does training reach?

Length: another document token can raise MaxSim's maxima and never lowers them (gr_as_mvdr Eq. 21),
while a mean over document tokens falls with every token that matches nothing. Each form of Eq. 1
scores the same candidates from the same vectors, and the scores are correlated with the candidates'
lengths.

Gradient: ∂rel/∂S_ij is A_ij / Z if A is a selection, so that training changes only the selected
document tokens. If A is a softmax of S (Eq. 16) or the relaxed top-k (aligner Eq. 9), the product
rule adds Σ S ∂A/∂S. Autograd computes the gradient in both cases.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import pandas
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.figures import GalleryEntry, forest_figure
from analysis.questions.analysis import Analysis, Findings, Subject
from analysis.questions.shape import measure_shape
from analysis.runs.run_folder import ranking_file
from analysis.statistics import mean_table, spearman, spread
from analysis.viewer.directed_alignment import normalised
from gr_mvdr.alignment import Alignment, FirstToken, MaxSim, Softmax, SoftTopK, TopK, TopP
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import read_config
from gr_mvdr.measures import Metric
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Normaliser, Scoring
from gr_mvdr.token_index.search import Searcher
from gr_mvdr.token_vectors import TokenVectors

OWN, SEARCH = "own", "retrieved"
# Forms of Eq. 1: A, and Z. A form named "mean" divides by Z = Σ A; in all other forms, Z = 1.
FORMS: dict[str, tuple[Alignment, Normaliser]] = {
    "max_sim": (MaxSim(), "none"),
    "top_four": (TopK(4), "none"),
    "top_tenth": (TopP(0.1), "none"),
    "mean_top_tenth": (TopP(0.1), "alignment"),
    "soft_max_sim": (SoftTopK(1, 0.02), "none"),
    "softmax": (Softmax("query_to_document"), "none"),
    "first_token": (FirstToken(), "none"),
    "max_sim_reversed": (MaxSim("document_to_query"), "none"),
    "mean_max_sim_reversed": (MaxSim("document_to_query"), "alignment"),
    "softmax_reversed": (Softmax("document_to_query"), "none"),
    "mean_softmax_reversed": (Softmax("document_to_query"), "alignment"),
}
FIRST = 10  # documents at the top of a ranking
GRADIENT = ("reached", "effective", "largest")
# The weight of each query or document in a mean → the measures that are averaged with it.
MEASURES = {
    "queries": ("correlation_with_length",),
    "relevant": ("first_ratio", "all_ratio"),
    "documents": GRADIENT,
}
BOUNDS = "low", "high"
SUMS = ["form", "pair", "documents", *GRADIENT]
PANELS = {
    "correlation_with_length": "length and score:\nSpearman's ρ",
    "first_ratio": "length of the first ten /\nof the relevant",
    "effective": "effective share of tokens\nthat hold the gradient",
}


def relevance_gradient(
    scoring: Scoring, documents: TokenVectors, query: TokenVectors
) -> tuple[Tensor, Tensor]:
    """Computes the relevance of documents to a query, and its gradient by S, saliences held fixed.

    Args:
        documents: (C, M, …).
        query: (N, …) without padding.

    Returns:
        (C,) relevance, and (C, H, M, N) ∂rel/∂S: A / Z if A is a choice (Eq. 1).
    """
    with torch.inference_mode(False), torch.enable_grad():
        documents, query = _copied(documents), _copied(query[None])
        documents.vectors.requires_grad_()
        pairs = scoring.align(documents, query)
        (gradient,) = torch.autograd.grad(pairs.score.sum(), pairs.similarity)
    return pairs.score.detach(), gradient


def _copied(texts: TokenVectors) -> TokenVectors:
    """Copies the tensors, since autograd cannot keep those made in inference mode."""
    parts = vars(texts).items()
    return replace(texts, **{name: part.clone() for name, part in parts if part is not None})


def concentration(gradient: Tensor, document_mask: Tensor) -> dict[str, Tensor]:
    """Measures on how few of its tokens a document's gradient lies.

    Args:
        gradient: (C, H, M, N); a token's weight is its sum of absolute values.
        document_mask: (C, M) bool.

    Returns:
        (C,) each: `documents`, whether there is any gradient. `reached`, the share of tokens that
        receive some; `effective`, exp of the entropy of their weights, as a share of the tokens;
        `largest`, the largest weight's share of all. These are 0 without gradient.
    """
    direction = "query_to_document"  # as if one query token aligned with these weights
    weights = normalised(gradient.abs().sum((1, 3)).unsqueeze(2), direction)
    query_mask = document_mask.new_ones(len(document_mask), 1)
    shape = measure_shape(weights, document_mask, query_mask, direction)
    support, nats, largest = (shape[name][:, 0] for name in ("support", "entropy", "top_1"))
    tokens = document_mask.sum(1)
    measures = support / tokens, (support > 0) * nats.exp() / tokens, largest
    return {"documents": support > 0, **dict(zip(GRADIENT, measures, strict=True))}


def measure_lengths(
    ranking: Ranking, lengths: Mapping[str, int], relevant: Mapping[str, list[str]]
) -> Iterator[dict[str, float]]:
    """Yields, for each query, ρ of length and score, and mean lengths.

    The lengths are of the first ten, of all and of the relevant documents (see `LengthBias`).
    Queries are left out if they have no relevant document, or if all lengths or scores are equal.

    Args:
        lengths: document id → its tokens.
        relevant: query id → ids of its relevant documents.
    """
    for query in ranking.query_ids:
        scores = {d: s for d, s in ranking.scores(query).items() if s > -torch.inf}
        found = torch.tensor([[lengths[d], s] for d, s in scores.items()]).double().view(-1, 2)
        if relevant[query] and all(len(column.unique()) > 1 for column in found.T):
            yield {
                "pair": query,
                "queries": 1,
                "correlation_with_length": spearman(*found.T),
                "first_ratio": float(found[:FIRST, 0].mean()),
                "all_ratio": float(found[:, 0].mean()),
                "relevant": fmean(lengths[d] for d in relevant[query]),
            }


@part("analysis")
@dataclass
class LengthBias(Analysis):
    """Which lengths does each form of Eq. 1 prefer, and which document tokens does it train?

    Candidates are those of reranking. A multi-vector system's candidates are scored from its
    stored vectors and saliences under each of `FORMS`; of every other system, its rankings are
    read. A document's length counts the tokens that the system reads.

    Args:
        queries: the number of rerank queries that are scored again, evenly spread over the first
            test split.
    """

    queries: Count

    name, title = "length_bias", "Length bias and gradient concentration"
    reading = (
        "Whether longer documents score higher, and how many of a document's tokens the gradient "
        "of its relevance reaches, under other alignments of the same vectors."
    )
    metrics = (
        Metric(
            "correlation_with_length",
            "Spearman's ρ of a document's length and its score among a query's documents: above 0, "
            "longer documents score higher.",
        ),
        Metric(
            "first_ratio",
            "The mean length of the first ten documents, divided by that of the relevant ones.",
        ),
        Metric(
            "all_ratio",
            "The mean length of all ranked documents, divided by that of the relevant ones: what "
            "first_ratio would be in a random order.",
        ),
        Metric("reached", "The share of a document's tokens with any gradient of the relevance."),
        Metric(
            "effective",
            "The effective number of tokens that hold the gradient (exp of the entropy), as a "
            "share of the document's tokens.",
        ),
        Metric("largest", "The share of the gradient on the token that holds most of it."),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.data.passages is None  # a passage's length is chosen

    def finish(self) -> Findings:
        """Returns metrics of every form, the table `length_bias` and its figure."""
        data, split, model = self.subject.data, self.subject.split, self.subject.model
        rankings, gradients = dict(self._stored()), []
        if isinstance(model.searcher, Searcher):
            again, gradients = self._score_again()
            rankings = {SEARCH: rankings[SEARCH], **again}
        judged = data.evaluation.relevant(split, data.evaluation.test_queries(split))
        texts = zip(data.documents["id"][:], data.documents["tokens"][:], strict=True)
        lengths = {name: len(model.cut_document(tokens)) for name, tokens in texts}
        relevant = {query: [d for d in found if d in lengths] for query, found in judged.items()}
        rows = [
            {"form": form, **row}
            for form, ranking in rankings.items()
            for row in measure_lengths(ranking, lengths, relevant)
        ]
        if not rows:
            return Findings()
        # Without gradients, their columns are NaN.
        frame = DataFrame(rows).merge(DataFrame(gradients, columns=SUMS), "left").infer_objects()
        parts = [
            mean_table(frame, ["form"], measures, weight).set_index("form")
            for weight, measures in MEASURES.items()
        ]
        table = pandas.concat(parts, axis=1).loc[frame["form"].unique()]
        numbers = [
            metric.row(row[metric.name], form, **{b: row[f"{metric.name}_{b}"] for b in BOUNDS})
            for form, row in table.iterrows()
            for metric in self.metrics
        ]
        title = f"{data.collection.name}: {self.title.lower()}"
        entry = GalleryEntry("length_bias", self.title, CAPTION)
        figures = [(bias_figure(table, title), entry)]
        tables = {"length_bias": table.reset_index().to_dict("records")}
        return self.findings(numbers, tables, figures)

    def _stored(self) -> Iterator[tuple[str, Ranking]]:
        """Yields the run's ranking of its search and that of each form of reranking."""
        run = self.subject.run
        yield SEARCH, Ranking.read(run / ranking_file("retrieve"), run)
        for number, form in enumerate(read_config(run)["rerank"]):
            file = ranking_file("rerank", form if number else "")
            yield form if number else OWN, Ranking.read(run / file, run)

    def _score_again(self) -> tuple[dict[str, Ranking], list[dict[str, Any]]]:
        """Scores candidates in every form; returns rankings, and each query's sums of `SUMS`."""
        data, split, model = self.subject.data, self.subject.split, self.subject.model
        queries = spread(data.evaluation.rerank_queries(split), self.queries)
        candidates, own = data.evaluation.list_candidates(split, queries), model.scoring
        forms = {OWN: own}
        if own.heads == 1:
            forms |= {n: replace(own, alignment=a, normaliser=z) for n, (a, z) in FORMS.items()}
        scores, sums = defaultdict(dict), []
        encoded = [query for query in model.encoded_queries(queries) if candidates[query.id]]
        for query, vectors, _ in track(encoded, "aligning candidates"):
            documents = model.searcher.vectors(candidates[query]).to(vectors.mask.device)
            for form, scoring in forms.items():
                found, gradient = relevance_gradient(scoring, documents, vectors)
                scores[form][query] = dict(zip(candidates[query], found.tolist(), strict=True))
                measures = concentration(gradient, documents.mask).items()
                totals = {name: float(value.sum()) for name, value in measures}
                sums.append({"form": form, "pair": query, **totals})
        return {form: Ranking(found) for form, found in scores.items()}, sums


CAPTION = (
    "Left: above 0, longer documents score higher. Middle: above 1, the first ten documents are "
    "longer than the relevant ones. Right: 1 if all document tokens hold the same share of the "
    "gradient ∂rel/∂S, 1 / length if one token holds it all. Bars are 95 % intervals over queries. "
    "“Mean” divides by Z = Σ A."
)


def bias_figure(table: DataFrame, title: str) -> Figure:
    """Draws a row for each form and a panel for each measure of `PANELS`."""
    columns = {"": "value", "_low": "low", "_high": "high"}
    parts = {
        place: table.rename(columns={measure + end: name for end, name in columns.items()})
        for measure, place in PANELS.items()
    }
    marks = pandas.concat(parts, names=["place", "name"])[[*columns.values()]].dropna()
    marks = marks.reset_index()
    return forest_figure(marks.assign(name=marks["name"].str.replace("_", " ")), title)

"""Exact term match in an alignment (Wu et al. §7.2, Figures 2 and 3).

An alignment that is normalised over the other side gives, for every token of the aligning side, a
distribution over partners. The hard rate asks whether the strongest partner is the same token; the
soft rate is the weight of all partners that are the same token.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.figures import BOXES, GalleryEntry, draw_boxes
from analysis.questions.alignment_store import StoreDescription
from analysis.questions.analysis import Analysis, Findings, PairAnalysis, Texts
from analysis.questions.framework import candidate_batches
from analysis.questions.tokens import BIN_NAMES, idf_bin
from analysis.statistics import mean_table, spread
from analysis.viewer.directed_alignment import (
    ALIGNING,
    DIRECTIONS,
    aligning_side,
    aligning_words,
    directed_alignment,
    own_direction,
)
from gr_mvdr.alignment import Softmax, other_side, pair_mask
from gr_mvdr.measures import Metric
from gr_mvdr.options import Count, check_choice, part
from gr_mvdr.relevance import Explanation, PairAlignment

MEASURES = ("hard", "soft")
# The paper takes the softmax of a sparse A, which gives every token but the chosen one the same
# weight; our "soft" takes the softmax of the similarity instead.
OF_A = "soft_of_a"
# The null model, whose tokens choose a partner at random: what a rate owes to the texts alone.
CHANCE = "chance"
PANELS = {
    "hard": "hard exact match",
    "soft": "soft exact match",
    CHANCE: "partners at random",
    OF_A: "soft, of A itself",
}
# Over every occurrence of a token, or only over occurrences that have an equal token to match.
DEFINITIONS = {"all": "all occurrences", "matched": "only where an equal token exists"}
ADDED = {"": "", "_matched": "Only where an equal token exists. ", "_content": "Content tokens. "}
# (definition, tokens) → the suffix of the metric's name. Special tokens never count.
SUFFIXES = {("all", "all"): "", ("matched", "all"): "_matched", ("all", "content"): "_content"}

MEANINGS = {
    "hard": "The share of tokens whose strongest partner is the same token.",
    "soft": "The share of a token's alignment on equal tokens.",
    CHANCE: "The share of equal tokens on the other side: both rates of partners drawn at random.",
    OF_A: "“soft” as in the paper: of the softmax of A, not of the similarity.",
}
TREND = "idf_correlation"
# (measure, suffix) → its metric; (measure, suffix, TREND) → Spearman's ρ of the types' rates and
# IDF.
DECLARED = {
    (name, suffix, *trend): Metric(
        "_".join((name + suffix, *trend)),
        f"{meaning} {ADDED[suffix]}{'Here Spearman’s ρ of rate and IDF.' if trend else ''}".strip(),
        headline=not suffix and not trend and name in MEASURES,
    )
    for name, meaning in MEANINGS.items()
    for suffix in SUFFIXES.values()
    for trend in ((), (TREND,))
}
PAPERS_FIGURE = {"query_to_document": "Figure 2", "document_to_query": "Figure 3"}


def exact_match(
    alignment: Tensor,
    document_ids: Tensor,
    query_ids: Tensor,
    document_mask: Tensor,
    query_mask: Tensor,
    direction: str,
) -> tuple[Tensor, Tensor]:
    """Computes hard and soft exact match of every token of the aligning side (Wu et al. §7.2).

    Leading axes broadcast: to use the same ids for many heads, give ids and masks an axis of size 1
    there. A token whose weights are all zero matches nothing.

    Args:
        alignment: (..., M, N), any float type, already normalised over the other side.
        document_ids: (..., M) int64.
        query_ids: (..., N) int64.
        document_mask: (..., M) bool, True = real token.
        query_mask: (..., N) bool, True = real token.
        direction: "query_to_document" gives one value for each query token,
            "document_to_query" one for each document token.

    Returns:
        hard: (..., N) or (..., M) bool, the aligned token (argmax) has the same id.
        soft: same shape, fp32, the sum of the alignment over equal ids, between 0 and 1.
        Both are False / 0 at padding.
    """
    check_choice("direction", direction, DIRECTIONS)
    axis = other_side(direction)
    real = pair_mask(document_mask, query_mask)
    same = (document_ids[..., :, None] == query_ids[..., None, :]) & real
    alignment, same, real = torch.broadcast_tensors(alignment.float(), same, real)
    soft = alignment.masked_fill(~same, 0).sum(axis)
    strength, partner = alignment.masked_fill(~real, -torch.inf).max(axis)
    hard = same.gather(axis, partner.unsqueeze(axis)).squeeze(axis) & (strength > 0)
    return hard, soft


def find_matches(
    pairs: PairAlignment, description: StoreDescription, special: Tensor, units: Tensor
) -> Iterator[DataFrame]:
    """Yields a table for each direction, with a row for each aligning token that is not special.

    Special tokens do not align, but other tokens may align to them.

    Args:
        special: (V,) bool.
        units: (B,) int64, the units that intervals resample: pairs, or their queries.

    Returns:
        Tables of `pair` (the unit), `token` (its id), `direction`, and the measures.
    """
    sides = pairs.document_ids, pairs.query_ids, pairs.document_mask, pairs.query_mask
    for direction in DIRECTIONS:
        alignment = directed_alignment(pairs, description.paradigm, direction)
        found = dict(zip(MEASURES, exact_match(alignment, *sides, direction), strict=True))
        real = pair_mask(pairs.document_mask, pairs.query_mask).float()
        uniform = real / real.sum(other_side(direction), keepdim=True).clamp(min=1)
        found[CHANCE] = exact_match(uniform, *sides, direction)[1]
        if own_direction(description.paradigm) == "query_to_document":  # a sparse A
            masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
            alignment = Softmax(direction)(pairs.alignment.float(), *masks).mean(1)
            found[OF_A] = exact_match(alignment, *sides, direction)[1]
        ids, counted = aligning_side(pairs, direction)[0], aligning_words(pairs, direction, special)
        columns = {name: value[counted].double().numpy() for name, value in found.items()}
        tokens = {"pair": units[:, None].expand_as(ids)[counted].numpy(), "token": ids[counted]}
        yield DataFrame(tokens | columns).assign(direction=direction, occurrences=1.0)


def summarise_matches(
    analysis: Analysis,
    frame: DataFrame,
    description: StoreDescription,
    texts: Texts,
    over: str = "",
) -> Findings:
    """Builds the table `exact_match`, its metrics and its boxplots.

    In an IDF bin, a rate averages over token types (each type's mean counts once, as in the paper's
    boxplots); in the row "all" it averages over occurrences. Metrics are named as follows:
    "query_to_document/hard" is over all occurrences, with the interval hard_low to hard_high;
    hard_matched is over occurrences with a match, hard_content over content tokens, hard/idf_2_4
    over the token types of a bin; hard_idf_correlation is Spearman's ρ of the types' rates and IDF;
    "query_to_document/chance" is the null model's rate, hard and soft.
    Over all occurrences, ρ mostly says which words occur in both texts, since most types of a
    document never meet an equal token; hard_matched_idf_correlation leaves these out.

    Args:
        frame: all rows of `find_matches`.
        over: names the kind of pairs in all names, such as "candidates"; "" = relevant pairs.
    """
    measures = [name for name in PANELS if name in frame]
    bins, content = idf_bin(texts.idf).numpy(), texts.kinds.content.numpy()
    tables, boxes, numbers = [], [], []
    for (definition, tokens), suffix in SUFFIXES.items():
        chosen = frame if definition == "all" else frame[frame[CHANCE] > 0]
        chosen = chosen if tokens == "all" else chosen[content[chosen["token"]]]
        if chosen.empty:
            continue
        averages = dict.fromkeys(measures, "mean") | {"occurrences": "sum"}
        types = chosen.groupby(["direction", "token"], as_index=False).agg(averages)
        types["idf_bin"] = [BIN_NAMES[bins[token]] for token in types["token"]]
        whole = mean_table(chosen, ["direction"], measures, "occurrences").assign(idf_bin="all")
        whole["token_types"] = whole["direction"].map(types["direction"].value_counts())
        binned = types.groupby(["direction", "idf_bin"], as_index=False)
        binned = binned.agg(averages | {"token": "size"}).rename(columns={"token": "token_types"})
        table = pd.concat([whole, binned]).assign(definition=definition, tokens=tokens)
        tables += table.to_dict("records")
        for row in (table if tokens == "all" else whole).to_dict("records"):
            at, ranged = {"place": place_of(over, row["direction"])}, row["idf_bin"] != "all"
            if ranged:
                at |= {"part": f"idf_{row['idf_bin'].replace('-', '_')}"}
                at |= {"label": f"IDF {row['idf_bin']}"}
            for name in measures:
                if not (suffix or ranged):
                    at |= {end: row[f"{name}_{end}"] for end in ("low", "high")}
                numbers.append(DECLARED[name, suffix].row(row[name], **at))
        if tokens == "all":
            types = types.assign(idf=texts.idf.numpy()[types["token"]])
            boxes.append(types.assign(counted=DEFINITIONS[definition]))
            for direction, rates in types.groupby("direction"):
                trends = rates[[*measures, "idf"]].corr("spearman")["idf"].drop("idf")
                place = place_of(over, direction)
                numbers += [DECLARED[m, suffix, TREND].row(v, place) for m, v in trends.items()]
    types, figures = pd.concat(boxes), []
    name = "_".join(filter(None, ("exact_match", over)))
    caption = f"{RATES} {SPARSE if OF_A in measures else GENERATIVE}"
    for direction, number in PAPERS_FIGURE.items():
        words = direction.replace("_", " ") + (f", {over}" if over else "")
        heading = f"Exact match, {words} (the paper's {number})"
        entry = GalleryEntry(f"{name}_{direction}", heading, caption)
        shown = types[types["direction"] == direction]
        figures.append((match_boxes(shown, direction, f"{description.title}: {words}"), entry))
    return analysis.findings(numbers, {name: tables}, figures)


def place_of(over: str, direction: str) -> str:
    return f"{over}/{direction}" if over else direction


@part("analysis")
class ExactMatch(PairAnalysis):
    """How often do tokens align to themselves? (gr_as_mvdr §7.2)"""

    name, title = "exact_match", "Exact match"
    reading = (
        "How often a token aligns to the same token on the other side, as an average over all "
        "occurrences of the aligning tokens; under an IDF range, over the token types in it."
    )
    metrics = tuple(DECLARED.values())

    def measure(self, batch: Explanation, first: int) -> Iterator[DataFrame]:
        special = self.texts.kinds.special
        units = torch.arange(first, first + len(batch))
        return find_matches(batch.layers[-1], self.description, special, units)

    def summarise(self, frame: DataFrame) -> Findings:
        return summarise_matches(self, frame, self.description, self.texts)


@part("analysis")
@dataclass
class CandidateMatch(Analysis):
    """`ExactMatch` over all candidates of queries, relevant or not, as in the paper (§7.2).

    Args:
        queries: the number of rerank queries, evenly spread over the first test split.
    """

    queries: Count

    name, title, reading = ExactMatch.name, ExactMatch.title, ExactMatch.reading
    metrics = ExactMatch.metrics

    def finish(self) -> Findings:
        subject, parts = self.subject, []
        description, texts = subject.store.description, subject.texts
        queries = spread(subject.data.evaluation.rerank_queries(subject.split), self.queries)
        for group, batch in candidate_batches(subject, queries):
            found = subject.model.align(batch)
            tensors = {n: x.cpu() for n, x in vars(found).items() if isinstance(x, torch.Tensor)}
            found = PairAlignment(**tensors)
            units = torch.tensor([query for query, _ in group])
            parts += find_matches(found, description, texts.kinds.special, units)
        frame = pd.concat(parts) if parts else DataFrame()
        if frame.empty:
            return Findings()
        return summarise_matches(self, frame, description, texts, "candidates")


RATES = (
    "One value for each token type of the aligning side; rarer tokens are to the right. Blue "
    f"counts every occurrence, orange only those that have an equal token to match. Partners at "
    f"random show what the texts alone would give. {BOXES}"
)
SPARSE = (
    "The last panel is the paper's soft rate, of the softmax of A itself (MaxSim's ones and "
    "zeros); the second takes the softmax of the similarity."
)
GENERATIVE = (
    "The paper shows only the soft rate of generative retrieval, since cross-attention is not "
    "trained to choose one token; the hard rate here is that of its largest weight."
)


def match_boxes(types: DataFrame, direction: str, title: str) -> Figure:
    """Draws boxplots of token types' exact match by IDF, a panel per measure (Figures 2 and 3).

    Args:
        types: a row for each token type and definition: the measures, `idf_bin`, `counted`.
    """
    sizes = types.loc[types["counted"] == DEFINITIONS["all"], "idf_bin"].value_counts()
    labels = {name: f"{name}\nn={sizes.get(name, 0):,}" for name in BIN_NAMES}
    points = types.assign(x=types["idf_bin"].map(labels)).rename(columns={"counted": "line"})
    measures = [name for name in PANELS if name in types]
    points = points.melt(["x", "line"], measures, "panel", "y").replace({"panel": PANELS})
    token = f"IDF of the {ALIGNING[direction]} token (n = token types)"
    return draw_boxes(points, title, token, "rate of a token type", [*labels.values()])

"""Activation patching: which layer, head and token carries a score (MechIR, Parry et al. 2025)?

A clean pair of query and document is scored, and a perturbed pair with as many tokens. The
perturbed pair is then scored again, while a part of the model receives its input from the clean
run. The share

    restored = (patched − perturbed) / (clean − perturbed)

is 0 if the part carries nothing of what was perturbed, and 1 if it carries all that matters. Shares
of successive parts do not sum to 1. (MechIR does the reverse: it patches the clean run with
activations of the perturbed one.)
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

import pandas
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor, nn

from analysis.figures import GalleryEntry, page_figure, styled
from analysis.questions.analysis import Analysis, Findings, Subject
from analysis.statistics import mean_table, spread
from gr_mvdr.batch import PairBatch
from gr_mvdr.decoder_layers import SUBLAYERS
from gr_mvdr.measures import Measured, Metric
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track
from gr_mvdr.texts import TextReader
from models.base import System, Table
from models.generative import GenerativeSystem, continues_prompts
from models.multi_vector import MultiVector
from models.retriever import Retriever
from models.saved_model import make_reader

LEAST = 0.01  # the smallest change, as a share of the score, that others are divided by
_TOKENS = 8192  # tokens per batch
_SAMPLE = 2000  # documents from which replacement words are drawn
_TRIES = 50  # replacement words that are tried
PARTS = ("residual", *SUBLAYERS)  # the residual stream that a layer reads, and what is added to it
# Layers, and the last linear map of each of their sublayers, as transformers names them in T5;
# BART; BERT, RoBERTa and DeBERTa; DistilBERT; MPNet; ModernBERT; Llama and Gemma; GPT-2.
_LAYER = re.compile(r"(?:.*?\.)??(?:block|layers?|h)\.(\d+)(?:\.(.+))?")
_MAPS = re.compile(
    r"(layer\.0\.SelfAttention\.o|self_attn\.out_proj|attention\.output\.dense"
    r"|attention\.out_lin|attention\.attn\.o|attn\.Wo|self_attn\.o_proj|attn\.c_proj)"
    r"|(layer\.1\.EncDecAttention\.o|encoder_attn\.out_proj)"
    r"|(layer\.\d\.DenseReluDense\.wo|fc2|output\.dense|ffn\.lin2|mlp\.Wo"
    r"|mlp\.down_proj|mlp\.c_proj)"
)
# Columns that identify a patch; layers and heads count from 1, and 0 stands for all of them.
PLACES = ("stack", "part", "layer", "head", "tokens")


@dataclass(frozen=True, eq=False)
class Site:
    """A part of one layer (counted from 0) of a stack, "encoder", "decoder", or "model".

    Attributes:
        part: one of `PARTS`.
        module: the module whose input is patched: the layer itself for "residual", otherwise the
            sublayer's last linear map.
        heads: H equal parts into which the input of an attention's `module` splits; 1 otherwise.
    """

    stack: str
    part: str
    layer: int
    module: nn.Module
    heads: int


class Patch(NamedTuple):
    """What a patched run takes from the clean run: sites, at some tokens, in one head or all."""

    sites: Sequence[Site]
    tokens: Sequence[int] | slice = slice(None)
    head: int | slice = slice(None)


class PatchedPair:
    """Measures what activations of a clean pair restore in a perturbed pair.

    Attributes:
        clean, perturbed: the scores of the two pairs.
        sites: stack → its sites.
        seen: site → its input in the clean run, (1, tokens, width); if a decoder is called several
            times (a docid's steps, T5-SEAL's windows), the calls' inputs are concatenated.
    """

    def __init__(self, model: System, pairs: PairBatch):
        """
        Args:
            model: in evaluation mode.
            pairs: the clean and the perturbed pair, whose queries have as many tokens.
        """
        self.model, self.pairs = model, pairs
        if isinstance(model, GenerativeSystem):
            backbone, self._read = model.backbone, model.forced(pairs)
            stacks = {"model": backbone.base_model}
            if not continues_prompts(model):
                stacks = {"encoder": backbone.get_encoder(), "decoder": backbone.get_decoder()}
        else:  # the document is encoded once, without patches
            stacks, self._read = {"encoder": model.encoder.backbone}, self.pairs
            self._document = model.encode_documents(pairs.document_ids[:1], pairs.document_mask[:1])
        self.sites = {name: find_sites(name, stack) for name, stack in stacks.items()}
        seen: dict[Site, list[Tensor]] = defaultdict(list)
        with self._reading(lambda site, given, _: seen[site].append(given)):
            self.clean = self._score([0]).item()
        self.seen = {site: torch.cat(parts, 1) for site, parts in seen.items()}
        self.perturbed = self._score([1]).item()

    @property
    def change(self) -> float:
        """clean − perturbed; NaN if this is too small a divisor."""
        change, largest = self.clean - self.perturbed, max(abs(self.clean), abs(self.perturbed))
        return change if abs(change) > LEAST * largest else float("nan")

    def restored(self, patches: Sequence[Patch]) -> Tensor:
        """(n,) fp64 on the CPU, the share that each patch restores; NaN if `change` is NaN."""
        return (self.run(patches) - self.perturbed) / self.change

    def run(self, patches: Sequence[Patch]) -> Tensor:
        """(n,) fp64 on the CPU: the perturbed pair's score with each patch."""
        rows = max(1, _TOKENS // (self.pairs.query_ids.shape[1] + self.pairs.document_ids.shape[1]))
        starts = range(0, len(patches), rows)
        return torch.cat([self._run(patches[start : start + rows]) for start in starts])

    def _run(self, patches: Sequence[Patch]) -> Tensor:
        rows, chosen = len(patches), {}
        for site in {site for patch in patches for site in patch.sites}:
            chosen[site] = torch.zeros(rows, self.seen[site].shape[1], site.heads, dtype=torch.bool)
        for row, patch in enumerate(patches):
            for site in patch.sites:
                chosen[site][row][patch.tokens, patch.head] = True

        def swap(site: Site, given: Tensor, start: int) -> Tensor | None:
            if site not in chosen:
                return None
            at = slice(start, start + given.shape[1])
            mask = chosen[site][:, at].unsqueeze(-1).to(given.device)
            both = (self.seen[site][:, at], given)
            return torch.where(mask, *(x.unflatten(-1, (site.heads, -1)) for x in both)).flatten(-2)

        with self._reading(swap):
            return self._score([1] * rows).cpu().double()

    @contextmanager
    def _reading(self, change: Callable[[Site, Tensor, int], Any]) -> Iterator[None]:
        """Inside the block, a site reads `change(site, input, first token)` unless it is None."""
        starts: dict[Site, int] = defaultdict(int)

        def read(site: Site, _: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            found = change(site, inputs[0], starts[site])
            starts[site] += inputs[0].shape[1]
            return None if found is None else (found, *inputs[1:])

        with ExitStack() as hooks:
            for site in chain(*self.sites.values()):
                hooks.enter_context(site.module.register_forward_pre_hook(partial(read, site)))
            yield

    def _score(self, rows: list[int]) -> Tensor:
        """(n,) scores, where `rows` names the clean (0) or the perturbed pair (1) n times."""
        if isinstance(self.model, GenerativeSystem):
            sides = {name: value[rows] for name, value in self.pairs.sides.items()}
            chosen = PairBatch(**sides, document_index=self.pairs.document_index[rows])
            return self.model.target_shares(chosen)[1].sum(1)
        queries = self.pairs.query_ids[rows], self.pairs.query_mask[rows]
        document = self._document[[0] * len(rows)]
        return self.model.scoring(document, self.model.encode_queries(*queries))

    def tokens(self, stack: str, row: int = 0) -> list[int | None]:
        """Returns the tokens at a stack's positions, for the clean (0) or the perturbed pair (1).

        A decoder's tokens are those that it predicts; None stands for a learned vector. A causal
        language model reads the prompt before each window of its target.
        """
        sides = {
            side: getattr(self._read, f"{side}_ids")[row][getattr(self._read, f"{side}_mask")[row]]
            for side in ("query", "document")
        }
        asked, own = sides["query"].tolist(), sides["document"].tolist()
        if stack == "model":
            size = self.model.window or len(own)
            parts = [[*asked[:-1], *own[at : at + size]] for at in range(0, len(own), size)]
            return list(chain(*parts))
        own, filling = asked if stack == "encoder" else own, self.model.template.expansion
        more = [filling] * (self.seen[self.sites[stack][0]].shape[1] - len(own))
        return [*own, *more] if filling is not None else [*more, *own]

    def groups(self, stack: str) -> dict[str, list[int]]:
        """Returns the positions of "all" and "exchanged" tokens, and "first", "last", "others"."""
        both = list(zip(self.tokens(stack), self.tokens(stack, 1), strict=True))
        every = range(len(both))
        found = {"all": [*every], "exchanged": [n for n in every if both[n][0] != both[n][1]]}
        left = [n for n in every if n not in found["exchanged"]]
        found |= {"first": [n for n in left if n == 0], "last": [n for n in left if n == every[-1]]}
        found["others"] = [n for n in left if 0 < n < every[-1]]
        return {name: places for name, places in found.items() if places}

    def table(self) -> DataFrame:
        """Measures what a stack's parts restore together, what each part restores at each group of
        tokens, and what each head restores at all tokens.

        Returns:
            One row per patch: `PLACES` and `restored`, fp64.
        """
        patches: dict[tuple, Patch] = {}
        for stack, sites in self.sites.items():
            named = self.groups(stack)
            patches[stack, "all parts", 0, 0, "all"] = Patch(sites)
            for site in sites:
                place = stack, site.part, site.layer + 1
                patches |= {(*place, 0, name): Patch([site], at) for name, at in named.items()}
                heads = range(site.heads) if site.heads > 1 else ()
                patches |= {(*place, h + 1, "all"): Patch([site], head=h) for h in heads}
        restored = self.restored([*patches.values()]).numpy()
        return DataFrame([*patches], columns=PLACES).assign(restored=restored)


class Exchange:
    """Exchanges a word of a query for another word of the collection with as many tokens.

    Args:
        reader: the run's text reader.
        documents: with `text`; only a sample is read.
    """

    def __init__(self, reader: TextReader, documents: Table):
        self.reader, sample = reader, spread(documents, _SAMPLE)
        texts = (set(re.findall(r"\w+", text.casefold())) for text in sample["text"][:])
        self.counts = Counter(word for words in texts for word in words)

    def __call__(self, query: str) -> tuple[str, str] | None:
        """Returns the query's rarest known word, and the query with another word in its place.

        None if the query has no known word, or no tried replacement has as many tokens.
        """
        known = [word for word in re.findall(r"\w+", query.casefold()) if word in self.counts]
        if not known:
            return None
        old, others = min(known, key=self.counts.get), sorted(self.counts)
        chosen = random.Random(f"0 {query}").sample(others, min(_TRIES, len(others)))
        word = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)", re.IGNORECASE)
        texts = [query, *(word.sub(new, query) for new in chosen)]
        own, *tokens = self.reader.tokenise(texts)
        fitting = zip(texts[1:], tokens, strict=True)
        return next(((old, t) for t, ids in fitting if len(ids) == len(own) and ids != own), None)


LARGEST = {
    what: Metric(what, f"The largest share of the lost score that one {words} restores.")
    for what, words in {"part": "part of a layer", "head": "head"}.items()
}


@part("analysis")
@dataclass
class Patching(Analysis):
    """Exchanges a word of test queries and patches the pair of query and relevant document.

    Only pairs whose score falls count, each weighted by its fall.

    Args:
        queries: the maximum number of pairs.
    """

    queries: Count

    name, title = "patching", "Activation patching"
    reading = (
        "A word of the query is exchanged; then one part of the model is given what it read before "
        "the exchange. The numbers are the share of the lost score that this restores: 1 is all."
    )
    metrics = (Metric("pairs", "How many pairs were measured.", unit="count"), *LARGEST.values())

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        # An encoder reads the query without the document.
        return isinstance(subject.model, MultiVector) or subject.model.generates == "document"

    def finish(self) -> Findings:
        """Returns the largest shares of a layer's part and of a head, two tables and a figure."""
        model, data, split = self.subject.model, self.subject.data, self.subject.split
        reader = make_reader(data)
        retriever = Retriever(model, reader, data.documents, data=data)
        exchange, queries = Exchange(reader, data.documents), data.evaluation.test_queries(split)
        texts = dict(zip(queries["id"][:], queries["text"][:], strict=True))
        pairs, _ = data.evaluation.test_pairs(split, 2 * self.queries, covers=model.covers)
        rows, found = [], []
        for query, document in track(pairs, "patching"):
            exchanged = exchange(texts[query])
            if exchanged is None or len(rows) == self.queries:
                continue
            word, text = exchanged
            about = {"query": query, "document": document, "exchanged": word, "text": text}
            given = retriever.pairs((texts[query], text), [document] * 2)
            pair = PatchedPair(retriever.system, given)
            rows.append(about | {"clean": pair.clean, "perturbed": pair.perturbed})
            if pair.change > 0:
                found.append(pair.table().assign(pair=len(found), change=pair.change))
        if len(found) < 2:
            return Findings()
        shares = patching_table(pandas.concat(found))
        title = f"{data.collection.name}: {len(found):,} pairs with an exchanged word"
        entry = GalleryEntry("patching", "What each layer and head carries of a word", CAPTION)
        figures = [(patching_figure(shares, title), entry)]
        tables = {"patching": shares.to_dict("records"), "patching_pairs": rows}
        numbers = self.rows({"pairs": shares["pairs"].max()}) + summarise(shares)
        return self.findings(numbers, tables, figures)


def patching_table(frame: DataFrame) -> DataFrame:
    """Computes Σ (patched − perturbed) / Σ (clean − perturbed), with 95 % intervals over pairs.

    Args:
        frame: for each `pair`, what parts restore, and its `change` clean − perturbed > 0; a pair
            may lack a group of tokens.
    """
    places, frame = [*PLACES], frame.assign(restored=frame["restored"] * frame["change"])
    table = mean_table(frame, places, ["restored"], "change").set_index(places)
    table = table.assign(pairs=frame.groupby(places)["pair"].count()).drop(columns="change")
    table = table.loc[frame.set_index(places).index.unique()]  # the order of the patches
    return table.rename(columns=lambda name: name.removeprefix("restored_")).reset_index()


def summarise(table: DataFrame) -> list[Measured]:
    """Returns each stack's largest share of a layer's part and of a head, with intervals."""
    numbers = []
    parts = table[table["part"].isin(SUBLAYERS) & (table["tokens"] == "all")]
    for (stack, is_head), rows in parts.groupby(["stack", parts["head"] > 0]):
        best, metric = rows.loc[rows["restored"].idxmax()], LARGEST["head" if is_head else "part"]
        numbers.append(metric.row(best["restored"], stack, low=best["low"], high=best["high"]))
    return numbers


CAPTION = (
    "Means over pairs, left by groups of tokens, right by heads. Shares of parts do not sum to 1. "
    "The residual stream is what a layer reads, the other rows are what its parts add to it; a "
    "decoder's tokens are the identifier's."
)


@styled
def patching_figure(table: DataFrame, title: str) -> Figure:
    """Draws two maps per stack: layers' parts by groups of tokens, and attentions by heads."""
    import seaborn

    table = table[table["layer"] > 0]
    names = table["part"].str.replace("_", " ") + " " + table["layer"].astype(str)
    table, stacks = table.assign(name=names), table["stack"].unique()
    figure = page_figure(title, len(stacks) * (1.2 + 0.2 * names.nunique()))
    panels = figure.subplots(len(stacks), 2, squeeze=False).flat
    for axes, (stack, by) in zip(panels, product(stacks, ("tokens", "head")), strict=True):
        rows = table[(table["stack"] == stack) & ((table["head"] > 0) == (by == "head"))]
        values = rows.pivot(index="name", columns=by, values="restored")
        values = values.loc[rows["name"].unique(), rows[by].unique()]
        seaborn.heatmap(values, ax=axes, cmap="RdBu", vmin=-1, vmax=1, yticklabels=True)
        axes.set(title=f"{stack}, by {by}", xlabel="", ylabel="")
    return figure


def find_sites(stack: str, model: Any) -> list[Site]:
    """Finds the sites of all layers of a transformers encoder or decoder, ordered by part.

    Raises:
        ValueError: the structure of its layers is unknown.
    """
    sites = []
    for name, module in model.named_modules():
        if (found := _LAYER.fullmatch(name)) is None:
            continue
        known, heads = _MAPS.fullmatch(found[2] or ""), 1
        if known or not found[2]:
            part = PARTS[known.lastindex or 0] if known else PARTS[0]
            if "attention" in part:
                own = getattr(model.config, f"{stack}_attention_heads", None)
                heads = own or model.config.num_attention_heads
            sites.append(Site(stack, part, int(found[1]), module, heads))
    sites.sort(key=lambda site: (PARTS.index(site.part), site.layer))
    layers = range(len({site.layer for site in sites}))
    parts = [part for part in PARTS if stack == "decoder" or part != "cross_attention"]
    every = [(part, layer) for part in parts for layer in layers]
    if not sites or [(site.part, site.layer) for site in sites] != every:
        rule = f"must have layers like those of T5, BART or BERT, got {type(model).__name__}"
        raise ValueError(f"backbone.name={model.name_or_path}: {rule}")
    return sites

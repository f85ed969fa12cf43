"""Observes one query's beam search: where it loses a document, and possible next tokens."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.decoding.beam_search import BeamSearchResult, Constraint, Hypotheses, Step, Successors

_EXAMPLES = 10  # documents listed, at most, of those that a sequence names or can reach


@dataclass(frozen=True)
class Hypothesis:
    """A token sequence of a search.

    Attributes:
        tokens: its token ids, one or more.
        log_prob: log p(tokens | query).
        documents: ids of some of the documents that it names, if a search ended with it.
        n_documents: the number of documents that it names.
    """

    tokens: tuple[int, ...]
    log_prob: float
    documents: tuple[str, ...] = ()
    n_documents: int = 0

    @property
    def probability(self) -> float:
        """p(tokens | query), by which a beam search without a plan chooses."""
        return math.exp(self.log_prob)


@dataclass(frozen=True)
class PathStep:
    """One step of a search, seen from a gold document.

    Attributes:
        alive: whether a gold hypothesis is kept or has ended earlier.
        best: the best gold successor; None if the constraint allows none.
        rank: its rank (from 1) among all successors; ties go to the first.
        kept: the hypotheses that continue or end at this step, the best first.
        limit: the least probable hypothesis that continues, the last place of the beam. Hypotheses
            that end take no place in the beam, so some in `kept` may be less probable.
    """

    alive: bool
    best: Hypothesis | None
    rank: int | None
    kept: tuple[Hypothesis, ...]
    limit: Hypothesis | None


@dataclass(frozen=True)
class SearchPath:
    """One query's search, seen from its gold documents.

    Attributes:
        steps: the steps of the search, in order.
        generated: the sequences that the search generated, the best first.
    """

    steps: tuple[PathStep, ...]
    generated: tuple[Hypothesis, ...]

    @property
    def lost(self) -> int | None:
        """The step (from 1) that lost the last gold hypothesis; None if one is generated."""
        return next((n for n, step in enumerate(self.steps, start=1) if not step.alive), None)

    @property
    def lost_step(self) -> PathStep | None:
        """The step that lost the gold: `best` left the beam; `kept[0]` to `limit` stayed in it."""
        return self.steps[self.lost - 1] if self.lost else None


class SearchTrace:
    """Follows the hypotheses of gold documents through the search of one query.

    A hypothesis is gold if it is a prefix of a gold document's identifier. The gold is alive after
    a step if a gold hypothesis continues or has ended.

        trace = SearchTrace(names.gold_prefixes(document), system.template.stop)
        path = trace.path(system.search([tokens], trace=trace))

    Args:
        gold: all prefixes of the gold identifiers, including the whole identifiers.
        end: the token that ends a sequence.
    """

    def __init__(self, gold: set[tuple[int, ...]], end: int):
        self.gold, self.end_token = gold, end
        self._next = defaultdict(list)
        for prefix in gold:
            self._next[prefix[:-1]].append(prefix[-1])
        # For each step: the hypotheses that it extended, the best gold successor, and its rank.
        self._steps: list[tuple[dict, Hypothesis | None, int | None]] = []

    def observe(
        self,
        depth: int,
        live: Hypotheses,
        successors: Successors,
        scores: Tensor,
        preferred: Tensor,
    ) -> None:
        """Records a step; pass it to `beam_search` as the `observer`."""
        prefixes = list(map(tuple, live.tokens[:, : depth - 1].tolist()))
        gold = torch.zeros_like(successors.row, dtype=torch.bool)
        for row, prefix in enumerate(prefixes):
            wanted = successors.token.new_tensor(self._next.get(prefix, []))
            gold |= (successors.row == row) & torch.isin(successors.token, wanted)
        best, rank, order = None, None, preferred.argsort(descending=True, stable=True)
        if len(places := gold[order].nonzero()):
            rank = int(places[0]) + 1
            place = order[rank - 1]
            tokens = (*prefixes[int(successors.row[place])], int(successors.token[place]))
            best = Hypothesis(tokens, float(scores[place]))
        began = dict(zip(prefixes, live.log_probs.tolist(), strict=True))
        self._steps.append((began, best, rank))

    def path(
        self,
        result: BeamSearchResult,
        named: Callable[[tuple[int, ...]], Sequence[int]] = lambda tokens: (),
        document_ids: Sequence[str] = (),
    ) -> SearchPath:
        """Returns the path of a search that has ended.

        Args:
            result: what the search returned.
            named: token ids → numbers of the documents that they name.
            document_ids: the ids of all documents.
        """
        final = {tuple(tokens): log_prob for tokens, log_prob in result.final.of(0)}
        ended = min((len(tokens) for tokens in final if tokens in self.gold), default=math.inf)
        steps = []
        for length, (_, best, rank) in enumerate(self._steps, start=1):
            ends = {t: p for t, p in final.items() if len(t) == length}
            if last := length == len(self._steps):  # sequences cut at the length limit continue
                going_on = {t: p for t, p in ends.items() if t[-1] != self.end_token}
            else:
                going_on = self._steps[length][0]
            alive = ended <= length or not (last or self.gold.isdisjoint(going_on))
            beam = sorted((ends | going_on).items(), key=lambda pair: -pair[1])
            kept = tuple(Hypothesis(*pair) for pair in beam)
            limit = next((one for one in reversed(kept) if one.tokens in going_on), None)
            steps.append(PathStep(alive, best, rank, kept, limit))
        generated = []
        for tokens, log_prob in final.items():
            documents = named(tokens)
            some = tuple(document_ids[number] for number in documents[:_EXAMPLES])
            generated.append(Hypothesis(tokens, log_prob, some, len(documents)))
        return SearchPath(tuple(steps), tuple(generated))


# Continuations of a prefix ----------------------------------------------------------------------


@dataclass(frozen=True)
class Continuation:
    """A token that may follow a prefix.

    Attributes:
        token: its id.
        probability: p(token | query, prefix), over the whole vocabulary.
        allowed: whether the constraint allows it; a search chooses no other token.
        n_documents: the number of documents that can still be reached after it.
        documents: the ids of some of them.
        text: the token as text, set by a `Retriever`.
    """

    token: int
    probability: float
    allowed: bool
    n_documents: int = 0
    documents: tuple[str, ...] = ()
    text: str = ""


@torch.no_grad()
def continue_prefix(
    step: Step,
    constraint: Constraint,
    prefix: Sequence[int],
    k: int,
    document_ids: Sequence[str],
    device: torch.device | str = "cpu",
) -> list[Continuation]:
    """Lists the most probable tokens after a prefix, best first; [] if the constraint allows none.

    Args:
        step: a step for one query that has not been called yet.
        prefix: token ids; [] = the beginning.
        k: lists the k most probable allowed tokens, and the forbidden ones among the k most
            probable tokens of all.
        document_ids: the ids of all documents.

    Raises:
        ValueError: the constraint does not allow the prefix.
    """
    row = torch.zeros(1, dtype=torch.int64, device=device)
    log_probs = step(row, row)[row][0]  # the first call ignores its tokens
    successors = constraint.expand(constraint.root(1, device))
    for token in prefix:
        chosen = (successors.token == token).nonzero().squeeze(1)
        if not len(chosen):
            raise ValueError(f"prefix={list(prefix)}: must be one that a search can generate")
        successors = constraint.expand(successors.state[chosen])
        log_probs = step(row + token, row)[row][0]
    if not len(successors.token):
        return []
    best = log_probs.argsort(descending=True, stable=True)
    allowed = torch.isin(best, successors.token)
    first_k = torch.arange(len(best), device=best.device) < k
    listed = (allowed & (allowed.cumsum(0) <= k)) | (first_k & ~allowed)
    continuations = []
    for token in best[listed & (log_probs[best] > -torch.inf)].tolist():
        state, probability = successors.state[successors.token == token], log_probs[token].exp()
        documents = constraint.reachable(state) if len(state) else np.empty(0, dtype=np.int64)
        some = tuple(document_ids[number] for number in documents[:_EXAMPLES])
        one = Continuation(token, float(probability), len(state) > 0, len(documents), some)
        continuations.append(one)
    return continuations

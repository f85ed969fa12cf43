"""Two processes equal one: every system's loss and gradients on the parts of one batch.

Five pairs on two ranks: 3 and 2. A document is there twice, on both ranks; hard negatives are
positives of the other rank, or negatives there too; what is relevant to a query is there on either.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from data_modules.examples import Example, HardNegatives, collate
from gr_mvdr.batch import cut
from gr_mvdr.ranks import gather_batch, rank, world_size
from gr_mvdr.tokenizers import EOS_ID
from tests.two_processes import in_two_processes

DOCUMENTS = [3, 7, 3, 1, 5]
# For XTR: the tokens of two copies tie, and rounding decides which are among the k best.
DISTINCT = [3, 7, 2, 1, 5]
NEGATIVES = [[7, 0], [6, 0], [2, 1], [3, 6], [0, 7]]
# What else is relevant to each query: positives and hard negatives of either rank, or nowhere.
RELEVANT = [[7, 1], [0, 5], [], [7, 3], [4]]
TEACHER = np.linspace(-1, 2, 15).reshape(5, 3).tolist()
LOSSES = ["InBatchCrossEntropy", "PairwiseCrossEntropy", "HardNegativesCrossEntropy"]
LOSSES += ["KLDistillation", "MarginMSE"]
# A hard and a soft alignment, saliences, a pool of the whole batch, keys and pooling.
KINDS = "t5_colbert wu aligner xtr mva-temporal".split()
DOCIDS = "atomic semantic-pawa titles-nci titles-np".split()
RANKED = "PrefixRanking MarginRanking ListwiseRanking PreferenceRanking".split()


def loss(name, **options):
    return {"_target_": f"gr_mvdr.losses.{name}", **options}


def examples(hard: bool, targets: int = 1, documents: list = DOCUMENTS) -> list[Example]:
    """Pairs of random texts of many lengths; `hard`: with hard negatives and a teacher."""
    rng = np.random.default_rng(3)
    texts = [cut(rng.integers(4, 60, n).tolist(), 99, EOS_ID) for n in (4, 7, 3, 9, 6, 5, 11, 2)]
    queries = [cut(rng.integers(4, 60, n).tolist(), 99, EOS_ID) for n in (3, 6, 4, 8, 5)]
    found = []
    for place, (query, document) in enumerate(zip(queries, documents, strict=True)):
        rows = NEGATIVES[place]
        negatives = HardNegatives([texts[row] for row in rows], rows, TEACHER[place])
        spans = [texts[document][number:] for number in range(targets)]
        given = negatives if hard else None
        found.append(Example(query, spans, document, given, RELEVANT[place]))
    return found


def part_of(found: list[Example], number: int, of: int) -> list[Example]:
    return [found[place] for place in np.array_split(np.arange(len(found)), of)[number]]


def cases():
    """name → (system, its examples). Built again for each, of the same seed on every rank."""
    from tests.models.conftest import (
        MULTI_VECTOR,
        make_cross_encoder,
        make_docid,
        make_multi_vector,
        make_seal,
        make_splade,
    )

    for kind in KINDS:
        documents = DISTINCT if kind == "xtr" else DOCUMENTS
        yield kind, make_multi_vector(kind), examples(False, documents=documents)
    weighted = loss("WeightedSum", losses=[*map(loss, LOSSES)], weights=[1.0, 0.8, 1.2, 0.9, 0.2])
    yield "losses", make_multi_vector("idf", loss=weighted), examples(True)
    yield "next", make_multi_vector(loss=loss("PairwiseCrossEntropy")), examples(False)
    l1 = {"_target_": "gr_mvdr.salience.LearnedSalience", "gate": "l1", "l1": 0.5}
    yield "l1", make_multi_vector(salience={"query": l1, "document": l1}), examples(False)
    yield "cached", make_multi_vector(gradient_cache=2), examples(True)
    yield "expansion", make_multi_vector(template={"expansion": 3}), examples(False)
    assert set(KINDS) <= set(MULTI_VECTOR)
    yield "cross", make_cross_encoder(negatives_per_query=2), examples(False)
    yield "cross-hard", make_cross_encoder(negatives_per_query=2, gradient_cache=3), examples(True)
    yield "splade", make_splade(gradient_cache=2), examples(True)
    yield "seal", make_seal(label_smoothing=0.1), examples(False, targets=2)
    for kind in DOCIDS:
        yield kind, make_docid(kind), examples(False)
    live = make_docid("titles-np")
    live.head.form = "contrastive"
    assert live.head.is_contrastive(live.current_epoch)
    yield "live", live, examples(False)
    kinds = "titles", "titles-np", "semantic-pawa", "titles"
    for kind, name in zip(kinds, RANKED, strict=True):
        ranking = {"_target_": f"models.beyond.ranking_losses.{name}", "negatives": 3}
        ranked = make_docid(kind, ranking=ranking)
        ranked.setup("fit")
        yield name, ranked, examples(kind != "titles")


class Loss(nn.Module):
    """What DDP wraps: a system whose forward is its loss, as under Lightning."""

    def __init__(self, system):
        super().__init__()
        self.system = system

    def forward(self, batch):
        return self.system.loss(batch)


def losses_and_gradients():
    """Of every case, on this rank's part of its examples, the mean over ranks taken."""
    found = {}
    for name, system, its_examples in cases():
        module = Loss(system)
        if world_size() > 1:
            module = DistributedDataParallel(module)
        value = module(collate(part_of(its_examples, rank(), world_size())))
        value.backward()
        gradients = {n: p.grad for n, p in system.named_parameters() if p.grad is not None}
        found[name] = {"loss": value.detach(), "gradients": gradients}
    batch = gather_batch(collate(part_of(examples(True), rank(), world_size())))
    return found | {"batch": vars(batch)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return in_two_processes(losses_and_gradients, tmp_path_factory.mktemp("two_ranks"))


@pytest.fixture(scope="module")
def expected():
    return losses_and_gradients()


NAMES = [*KINDS, *DOCIDS, "losses", "next", "l1", "cached", "expansion"]
NAMES += ["cross", "cross-hard", "splade", "seal", "live"]
NAMES += RANKED


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_are_those_of_one_process(name, found, expected):
    assert set(NAMES) | {"batch"} == set(expected)
    one, other = (part[name] for part in found)
    whole = expected[name]
    assert whole["loss"] > 0.01
    assert torch.isclose((one["loss"] + other["loss"]) / 2, whole["loss"], rtol=1e-5)
    assert set(one["gradients"]) == set(other["gradients"]) == set(whole["gradients"])
    largest = max(gradient.abs().max() for gradient in whole["gradients"].values())
    for key, gradient in whole["gradients"].items():
        for part in (one, other):
            assert torch.allclose(part["gradients"][key], gradient, 1e-3, 1e-5 * largest), key


def test_every_rank_sees_the_batch_of_all(found):
    whole = vars(collate(examples(True)))
    for part in found:
        for name, value in whole.items():
            assert torch.equal(part["batch"][name], value), name

"""Processes that train together: what they gather, and that losses and gradients are one's."""

import time

import pytest
import torch
import torch.distributed as distributed

from gr_mvdr.ranks import (
    broadcast,
    gather,
    gather_rows,
    join,
    leave,
    mean_over_ranks,
    rank,
    rank_zero_first,
    slice_for_rank,
    sum_over_ranks,
    wait,
    world_size,
)
from tests.two_processes import in_two_processes


def texts(number: int) -> torch.Tensor:
    """(3, 2, 2) of rank 0 and (1, 4, 2) of rank 1."""
    torch.manual_seed(number)
    return torch.randn((3, 2, 2) if number == 0 else (1, 4, 2), dtype=torch.float64)


def whole_loss(vectors: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Looks at all pairs, so that no rank can compute it alone."""
    flat = vectors.sum(1)
    return ((flat @ flat.T).softmax(1).diagonal().log() * weight.exp()).sum()


def of_each_rank():
    results = {"rank": rank(), "ranks": world_size(), "share": range(5)[slice_for_rank(5)].start}
    number, weight = rank(), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    own = texts(number).requires_grad_()
    parts = gather(own)
    results["parts"] = [part.detach() for part in parts]
    loss = whole_loss(torch.cat(parts), weight)
    loss.backward()
    results |= {"loss": loss.detach(), "gradient": own.grad, "weight": weight.grad}
    mask = torch.ones(2 - number, 1 + number, dtype=torch.bool)
    results["mask"] = gather_rows(mask)
    results["none"] = [len(part) for part in gather(torch.zeros(3 * number, 2))]
    results["number"] = gather_rows(torch.tensor([7 + number]))
    results["sum"] = sum_over_ranks(torch.tensor(number + 1.0))
    results["mean"] = mean_over_ranks(torch.tensor(10.0 * (number + 1)), 1 + 3 * number)
    results["empty"] = mean_over_ranks(torch.tensor(4.0 * number), 2 * number)
    results["first"] = broadcast(torch.arange(3 + number).double())
    with rank_zero_first():
        results["entered"] = time.monotonic()  # one clock for all processes of a machine
        if number == 0:
            time.sleep(0.3)
        results["done"] = time.monotonic()
    wait()
    join()  # a second time is no harm
    leave()
    return results | {"after": [rank(), world_size()], "connected": distributed.is_initialized()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return in_two_processes(of_each_rank, tmp_path_factory.mktemp("ranks"))


def test_one_process_needs_no_connection():
    assert (rank(), world_size(), slice_for_rank(7)) == (0, 1, slice(0, 7))
    tensor = torch.ones(2, requires_grad=True)
    assert gather(tensor)[0] is tensor and mean_over_ranks(torch.tensor(6.0), 3) == 2
    assert not torch.isnan(mean_over_ranks(torch.tensor(0.0), 0))
    join()
    wait()
    leave()
    with rank_zero_first():
        assert not distributed.is_initialized()


def test_gathered_tensors_are_padded_to_the_longest_and_cut_to_each_ranks_own(results):
    for one in results:
        first_part, second_part = one["parts"]
        assert torch.equal(first_part[:, :2], texts(0)) and not first_part[:, 2:].any()
        assert first_part.shape == (3, 4, 2) and torch.equal(second_part, texts(1))
        assert one["mask"].tolist() == [[True, False], [True, False], [True, True]]
        assert one["none"] == [0, 3] and one["number"].tolist() == [7, 8]


def test_loss_and_gradients_are_those_of_one_process(results):
    whole = torch.nn.functional.pad(texts(0), (0, 0, 0, 2)).requires_grad_()
    other = texts(1).requires_grad_()
    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    loss = whole_loss(torch.cat([whole, other]), weight)
    loss.backward()
    for one, expected in zip(results, (whole.grad[:, :2], other.grad), strict=True):
        assert torch.allclose(one["loss"], loss)
        # DDP takes the mean over ranks of what these gradients make of the parameters' own.
        assert torch.allclose(one["gradient"] / 2, expected)
        assert torch.allclose(one["weight"], weight.grad)
    assert whole.grad.abs().min() > 1e-4


def test_ranks_share_items_and_a_mean_weighs_every_item_alike(results):
    assert [(one["rank"], one["ranks"], one["share"]) for one in results] == [(0, 2, 0), (1, 2, 2)]
    assert all(torch.equal(one["first"], torch.arange(3).double()) for one in results)
    assert all(one["sum"] == 3 for one in results)
    assert [one["mean"].item() for one in results] == [4.0, 8.0], "mean 6 = (10 + 20) / 5, twice"
    assert [one["empty"].item() for one in results] == [0.0, 4.0], "one rank without items"


def test_rank_0_goes_first_and_the_connection_ends(results):
    assert results[1]["entered"] > results[0]["done"]
    assert all(one["after"] == [0, 1] and not one["connected"] for one in results)

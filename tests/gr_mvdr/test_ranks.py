"""Processes that train together: what they gather, and in what order they go."""

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


def of_each_rank():
    results = {"rank": rank(), "ranks": world_size(), "share": range(5)[slice_for_rank(5)].start}
    number = rank()
    results["parts"] = gather(texts(number))
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


def test_gathered_tensors_are_padded_to_the_longest_and_cut_to_each_ranks_own(results):
    for one in results:
        first_part, second_part = one["parts"]
        assert torch.equal(first_part[:, :2], texts(0)) and not first_part[:, 2:].any()
        assert first_part.shape == (3, 4, 2) and torch.equal(second_part, texts(1))
        assert one["mask"].tolist() == [[True, False], [True, False], [True, True]]
        assert one["none"] == [0, 3] and one["number"].tolist() == [7, 8]


def test_ranks_share_items_and_a_mean_weighs_every_item_alike(results):
    assert [(one["rank"], one["ranks"], one["share"]) for one in results] == [(0, 2, 0), (1, 2, 2)]
    assert all(torch.equal(one["first"], torch.arange(3).double()) for one in results)
    assert all(one["sum"] == 3 for one in results)
    assert [one["mean"].item() for one in results] == [4.0, 8.0], "mean 6 = (10 + 20) / 5, twice"
    assert [one["empty"].item() for one in results] == [0.0, 4.0], "one rank without items"


def test_rank_0_goes_first_and_the_connection_ends(results):
    assert results[1]["entered"] > results[0]["done"]
    assert all(one["after"] == [0, 1] and not one["connected"] for one in results)

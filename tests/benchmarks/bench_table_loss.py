"""Benchmark of the table's cross-entropy: against its products, and a step against transformers.

One thread, CPU time, all ways of a comparison in turn in one process, the least of each: what else
runs on a machine only adds to it. The products are
those that nobody can do without, logits forwards, states and table backwards, into memory that is
there already. A step is what T5-SEAL and DSI do with a small T5, the optimizer left out.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import T5ForConditionalGeneration

from gr_mvdr.heads.plain import Head, table_cross_entropy
from tests.benchmarks.bench_beam_search import small_t5

VOCABULARY, SIZE, QUERIES, QUERY_LENGTH = 32_128, 128, 64, 32
RUNS = 3
# Targets of a batch of 64 queries, and their tokens.
TARGETS = {"DSI": (64, 7), "T5-SEAL, 1 span": (64, 11), "T5-SEAL, 5 spans": (320, 11)}


def products(states: Tensor, table: Tensor) -> Callable[[], None]:
    logits = states @ table.T
    results = torch.empty_like(states), torch.empty_like(table)

    def run() -> None:
        torch.mm(states, table.T, out=logits)
        torch.mm(logits, table, out=results[0])
        torch.mm(logits.T, states, out=results[1])

    return run


def whole(head: Head, states: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head.logits(states, None, labels).float(), labels, reduction="sum")


def blockwise(head: Head, states: Tensor, labels: Tensor) -> Tensor:
    return table_cross_entropy(head, (states, None, labels), labels)


def step(model: T5ForConditionalGeneration, queries: Tensor, targets: Tensor) -> Tensor:
    """The loss as `models.generative` makes it; a query is encoded once."""
    head, mask = Head(model), torch.ones_like(queries, dtype=torch.bool)
    encoded = model.encoder(queries, attention_mask=mask.long()).last_hidden_state
    of_target = torch.arange(len(targets)) // (len(targets) // len(queries))
    output, _ = head.decode(encoded[of_target], mask[of_target], targets)
    return blockwise(head, output.last_hidden_state.flatten(0, 1), targets.flatten())


def transformers_step(
    model: T5ForConditionalGeneration, queries: Tensor, targets: Tensor
) -> Tensor:
    repeated = queries.repeat_interleave(len(targets) // len(queries), 0)
    mask = torch.ones_like(repeated)
    return model(input_ids=repeated, attention_mask=mask, labels=targets).loss


def in_turn(ways: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The least milliseconds of CPU time of each way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():
            start = time.process_time()
            way()
            times[name].append(1000 * (time.process_time() - start))
    return {name: min(found) for name, found in times.items()}


def compare_losses(name: str, n: int, dtype: torch.dtype) -> float:
    """The time of the loss, forwards and backwards, as a share of that of whole logits."""
    head = Head(small_t5())
    states, labels = torch.randn(n, SIZE), torch.randint(0, VOCABULARY, (n,))

    def learn(loss: Callable) -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            total = loss(head, states.clone().requires_grad_(), labels)
        total.backward()
        head.backbone.zero_grad()

    ways = {
        "products": products(states.to(dtype), head.output_table.detach().to(dtype)),
        "whole": lambda: learn(whole),
        "blockwise": lambda: learn(blockwise),
    }
    found = in_turn(ways)
    ratio = found["blockwise"] / found["products"]
    shown = ", ".join(f"{way} {ms:.0f} ms" for way, ms in found.items())
    print(f"table loss, {name}, {n} positions, {dtype}: {shown}: {ratio:.2f} × the products")
    return found["blockwise"] / found["whole"]


def compare_steps(name: str, targets: Tensor, dtype: torch.dtype) -> float:
    """How many times as long as transformers' with labels a step takes."""
    model, queries = small_t5().train(), torch.randint(3, VOCABULARY, (QUERIES, QUERY_LENGTH))
    model.config.decoder_start_token_id = 0

    def learn(loss: Callable) -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            total = loss(model, queries, targets)
        total.backward()
        model.zero_grad()

    ways = {"ours": lambda: learn(step), "transformers": lambda: learn(transformers_step)}
    found = in_turn(ways)
    ratio = found["ours"] / found["transformers"]
    shown = ", ".join(f"{way} {ms:.0f} ms" for way, ms in found.items())
    print(f"training step, {name}, {dtype}: {shown}: {ratio:.2f} ×")
    return ratio


def main() -> None:
    torch.set_num_threads(1)
    for name, (n, length) in TARGETS.items():
        targets = torch.randint(3, VOCABULARY, (n, length))
        for dtype in (torch.float32, torch.bfloat16):
            assert compare_losses(name, n * length, dtype) < 0.9
            assert compare_steps(name, targets, dtype) < 1.05


if __name__ == "__main__":
    main()

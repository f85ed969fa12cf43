"""A training step of T5-SEAL (one span and five a query) and of DSI: transformers with labels.

Where a query has several targets, transformers' model reads it as often.
"""

REQUIREMENTS = []  # transformers is in ours

SHAPE = dict(vocab_size=32_128, d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4)
BATCH, QUERY, SPAN, DOCID = 64, 32, 14, 4


def inputs():
    return {}


def ours(arrays):
    import torch

    from tests.benchmarks import bench_training as bench

    bench.QUERY, bench.DSI_QUERY, bench.SPAN = QUERY, QUERY, SPAN
    backbone = {"name": None, "shape": SHAPE, "attention": "eager"}

    def step(case):
        optimizer = torch.optim.AdamW(case.system.parameters())

        def work():
            optimizer.zero_grad()
            case.system.loss(case.batch).backward()
            optimizer.step()

        return work

    works = {}
    for spans in (1, 5):
        bench.N_SPANS = spans
        works[f"T5-SEAL, {spans} spans"] = step(bench.seal(backbone, BATCH, None))
    works["DSI"] = step(bench.dsi(backbone, BATCH, None))
    return works


def peer(arrays):
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(**SHAPE, dropout_rate=0.0, decoder_start_token_id=0)
    config._attn_implementation = "eager"

    def step(targets, length):
        model = T5ForConditionalGeneration(config)
        optimizer = torch.optim.AdamW(model.parameters())
        queries = torch.randint(5, 32_000, (BATCH, QUERY)).repeat_interleave(targets, 0)
        labels = torch.randint(5, 32_000, (BATCH * targets, length))

        def work():
            optimizer.zero_grad()
            model(input_ids=queries, labels=labels).loss.backward()
            optimizer.step()

        return work

    works = {f"T5-SEAL, {spans} spans": step(spans, SPAN) for spans in (1, 5)}
    works["DSI"] = step(1, DOCID)
    return works

"""The types of the keys that no signature declares: a table that `conf/checks.py` reads.

A key is written as the user types it; `*` matches any part of it, dots included. The first line
that matches a key counts. A key that a class takes needs no line here if its type in the signature
says which values are valid (`Size`, `Literal[...]`, `bool`). Any other new key needs a line; a test
names the keys that lack one.
"""

from typing import Annotated, Any, Literal

from conf.signatures import Definition, read_signature
from gr_mvdr.evaluation.metrics import KNOWN, find_metric
from gr_mvdr.files import HUB_NAME
from gr_mvdr.options import (
    AtLeast,
    Count,
    NonNegative,
    Rate,
    Rule,
    Seed,
    Size,
    Text,
    describe_type,
)


def _some(item: Any) -> Any:
    """Returns the type of a list of items that is not empty."""
    return Annotated[
        list[item], Rule(f"a list with at least one value, each {describe_type(item)}", bool)
    ]


def _counts_devices(text: str) -> bool:
    return all(part.strip().isdecimal() for part in text.strip(",").split(",")) and "," in text


Length = Annotated[int, AtLeast(2)]
Group = dict
Splits = Text | list[Text]
Metric = Annotated[str, Rule(KNOWN, find_metric)]
Devices = Annotated[str, Rule("numbers of devices such as 0,1", _counts_devices)]
FromEncoder = Annotated[Group, Definition("gr_mvdr.from_encoder.make_encoder_decoder")]
Checkpointing = Annotated[bool, Rule("true, or no run could be opened again", bool)]
PartWeights = Annotated[
    list[NonNegative],
    Rule("a list with at least two values, each a number ≥ 0", lambda weights: len(weights) > 1),
]
Precision = Literal[
    *("auto", "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true"),
    *("32", "16", "bf16", "64", 32, 16, 64),
]

# `study.settings` has a list of values for each search option.
_SEARCH = read_signature("gr_mvdr.token_index.search.SearchOptions").types

RULES: dict[str, Any] = {
    "seed": Seed,
    "query_length": Length,
    "document_length": Length,
    "retrieval_depth": Size,
    "resume": bool,
    "output": Text | None,
    "experiments": Text,
    "name": Text | int | None,
    "run": Text | None,
    "system": Text,
    "weights": Text | None,
    "initial": Text | None,
    "collection": Text | None,
    "neighbours": Size,
    "beam_size": Size,
    "docid_beam": Size,
    # Keys that experiments set or that sweeps vary.
    "experiment": Text,
    **dict.fromkeys(("size", "sizes", "trained", "trainings", "collections"), Text),
    **dict.fromkeys(("batches", "k_trains", "table4.row"), Text),
    "table4*": Any,
    "multipass*": Any,
    # The other commands.
    "runs": Splits,
    "tasks": Splits,
    "languages": Splits | None,
    "labels": list[Text | int] | None,
    "mixed": bool,
    "page": Text | None,
    "push": Annotated[str, Rule("a name on the hub: USER/NAME", HUB_NAME.fullmatch)] | None,
    "license": Text,
    "trust": bool,
    "port": Annotated[int, Rule("≥ 1024 and ≤ 65535", lambda port: 1024 <= port <= 65535)] | None,
    "open": bool,
    "paper": Text | None,
    "method": Literal["rrf", "combsum"],
    "k": Size,
    "part_weights": PartWeights | None,
    "tune": Text | None,
    "metric": Metric,
    "queries": Size,
    "others": Annotated[int, AtLeast(2)],
    "qrels": Text | None,
    #
    "tokenizer": Annotated[Group, Definition("data_modules.tokenisation.choose_tokenizer")],
    #
    "backbone": Group,
    "backbone.name": Text | None,
    "backbone.dropout_rate": Rate | None,
    "backbone.template": Group | None,
    "backbone.attention": Literal["eager", "sdpa"],
    "backbone.gradient_checkpointing": bool,
    "backbone.initialisation": Literal["random", "mimetic"],
    "backbone.latent": Rate,
    "backbone.from_encoder": FromEncoder | None,
    "backbone.shape": Group | None,
    "backbone.shape.feed_forward_proj": Text,
    "backbone.shape.num_*": Size,
    "backbone.shape.d_*": Size,
    "backbone.shape.vocab_size": Annotated[int, AtLeast(7)],
    "spans": Group,
    #
    "trainer": Group,
    "trainer.max_epochs": Size | Literal[-1] | None,
    "trainer.max_steps": Size | Literal[-1],
    "trainer.accelerator": Literal["auto", "cpu", "gpu", "cuda", "mps"],
    "trainer.devices": Size | Literal["auto", -1] | _some(Count) | Devices,
    "trainer.precision": Precision,
    # Lightning itself checks the other keys when the trainer is made, before anything is trained.
    "trainer.max_time": Any,
    "trainer.gradient_clip_val": NonNegative | None,
    "trainer.accumulate_grad_batches": Size,
    "trainer.check_val_every_n_epoch": Size | None,
    "trainer.enable_checkpointing": Checkpointing,
    #
    "data": Group,
    "data.metrics": _some(Metric),
    "data.examples": Group,
    "data.examples.negatives": Group | None,
    "data.indexing": Group | None,
    #
    "model": Group,
    #
    "alignments": dict[str, Group],
    "rerank": dict[str, Group],
    "rerank.*.pool": Literal["sum", "mean", "max"],
    #
    "analysis": Group,
    "analysis.precision": Literal["float32", "float16"],
    "analysis.questions": dict[str, Group | None] | None,
    "analysis.questions.*": Any,  # each analysis declares its own options
    "analysis.*": Count,
    #
    "study": Group | None,
    "study.alignments": list[Group],
    "study.curves*": Any,  # see `Curves`
    "study.settings": Group | _some(Group),
    **{
        f"study.settings.{place}{key}": _some(rule)
        for key, rule in {**_SEARCH, "beam_size": Size, "plan_weight": NonNegative}.items()
        for place in ("", "*.")
    },
    #
    "logger": Group | None,
}

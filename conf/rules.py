"""The types of the keys that no signature declares: a table that `conf/checks.py` reads.

A key is written as the user types it; `*` matches any part of it, dots included. The first line
that matches a key counts. A key that a class takes needs no line here if its type in the signature
says which values are valid (`Size`, `Literal[...]`, `bool`). Any other new key needs a line.
"""

from typing import Annotated, Any, Literal

from conf.signatures import Definition
from gr_mvdr.evaluation.metrics import KNOWN, find_metric
from gr_mvdr.files import HUB_NAME, is_on_hub
from gr_mvdr.options import (
    AtLeast,
    Count,
    ExistingPath,
    Rule,
    Seed,
    Size,
    Text,
    describe_type,
    exists,
)


def _some(item: Any) -> Any:
    """Returns the type of a list of items that is not empty."""
    return Annotated[
        list[item], Rule(f"a list with at least one value, each {describe_type(item)}", bool)
    ]


Length = Annotated[int, AtLeast(2)]
Group = dict
Metric = Annotated[str, Rule(KNOWN, find_metric)]
RunOrHubName = Annotated[
    str,
    Rule("an existing folder or a hub name", lambda name: is_on_hub(name) or exists(name)),
]
Checkpointing = Annotated[bool, Rule("true, or no run could be opened again", bool)]

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
    "weights": RunOrHubName | None,
    "initial": RunOrHubName | None,
    "collection": Text | None,
    "validation": Annotated[Group, Definition("data_modules.validation.ValidationOptions")],
    "validation.metric": Metric,
    "neighbours": Size,
    "beam_size": Size,
    "docid_beam": Size,
    # The other commands.
    "runs": ExistingPath | list[ExistingPath],
    "labels": dict[str, Text | int] | None,
    "metrics": list[Text] | None,
    "tested": list[Metric],
    "baseline": Text | None,
    "names": dict[str, Text] | None,
    "page": Text | list[Text] | None,
    "push": Annotated[str, Rule("a name on the hub: USER/NAME", HUB_NAME.fullmatch)] | None,
    "license": Text,
    "trust": bool,
    "port": Annotated[int, Rule("≥ 1024 and ≤ 65535", lambda port: 1024 <= port <= 65535)],
    "paper": Text | None,
    #
    "tokenizer": Annotated[Group, Definition("data_modules.tokenisation.choose_tokenizer")],
    #
    "backbone": Annotated[Group, Definition("gr_mvdr.backbones.load_backbone")],
    #
    "trainer": Group,
    # Lightning itself checks the other keys when the trainer is made, before anything is trained.
    "trainer.enable_checkpointing": Checkpointing,
    #
    "data": Group,
    "data.metrics": _some(Metric),
    "data.examples": Group,
    "data.examples.negatives": Group | None,
    "data.indexing": Group | None,
    #
    "model": Group,
    "model.metric": Metric,
    "model.identifiers.embeddings": ExistingPath | Group | None,
    "model.identifiers.embeddings.run": ExistingPath | None,
    #
    "alignments": dict[str, Group],
    "sources": dict[str, Group],
    "rerank": dict[str, Group],
    "rerank.*.pool": Literal["sum", "mean", "max"],
    #
    "analysis": Group,
    "analysis.precision": Literal["float32", "float16"],
    "analysis.questions": dict[str, Group | None] | None,
    "analysis.questions.*": Any,  # each question declares its own options
    "analysis.*": Count,
    #
    "study": Group | None,
    "study.alignments": list[Group],
    "study.curves*": Any,  # see `Curves`
    "study.settings": Group | _some(Group),
    "study.settings.*": Any,  # lists of values of a search's options, which the study checks
    "study.searches*": Any,
    #
    "logger": Group | None,
}

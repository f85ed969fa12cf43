"""Zero-shot search: the trained model of a finished run, on a collection that it never saw."""

from typing import Any

from gr_mvdr.files.reading import read_checkpoint, reading
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System
from models.pipeline_stage import FinishedRun

KEY = "weights"


def find_weights(path: str | None) -> FinishedRun | None:
    """The run whose trained model is to be taken over; None without one.

    Raises:
        FileNotFoundError: there is no such folder; ValueError: no finished, trained run is in it.
    """
    if path is None:
        return None
    run = FinishedRun.read(KEY, path)
    if not (run.path / "checkpoints/last.ckpt").is_file():
        raise ValueError(f"{run.key}: must be a trained run, it has no checkpoints/last.ckpt")
    return run


def take_weights(model: System, tokenizer: Any, run: FinishedRun) -> None:
    """Gives the model the run's trained parameters; search and alignment stay the model's own.

    Args:
        model: prepared on the collection that is searched.
        tokenizer: of that collection.

    Raises:
        ValueError: the run had another tokeniser, or parts of other names or sizes.
    """
    head = getattr(model, "head", None)
    if head is not None and head.table_state() is not None:
        raise ValueError(
            f"{run.key}: must not be a run of NP decoding, whose table is made of the documents "
            "that it was trained on"
        )
    if load_tokenizer(run.path / "tokenizer").get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"{run.key}: was trained with another tokeniser, must be this run's "
            "(see backbone.name and tokenizer in both configurations)"
        )
    path = run.path / "checkpoints/last.ckpt"
    found = read_checkpoint(path)["state_dict"]
    ours, theirs = _sizes(model.state_dict()), _sizes(found)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                f"{run.key}: {name} is {theirs.get(name)} there, must be {ours.get(name)}: "
                "its model, size and groups must be this run's"
            )
    with reading(run.key):
        model.load_state_dict(found)


def _sizes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items() if hasattr(value, "shape")}

"""Counts the files that one training step and one search of T5-ColBERT go through.

`python -m tests.traced_files` prints the files of this repository in which a function is executed.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
TINY = ["model=t5_colbert", "data=almanac_small", "data.batch_size=8", "logger=none"]
TINY += ["backbone.shape.d_model=16", "backbone.shape.num_layers=1", "tokenizer.vocab_size=500"]


@contextmanager
def traced() -> Iterator[dict[str, None]]:
    """Yields the files in the order in which their functions are first executed in the block."""
    files: dict[str, None] = {}

    def note(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(f"{ROOT}/") and frame.f_code.co_name != "<module>":
            files.setdefault(file.removeprefix(f"{ROOT}/"))

    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        for file in [f for f in files if f.startswith((".", "tests/"))]:
            del files[file]


def main() -> None:
    """Prints the files of a training step, from text to loss, and of a search.

    The texts' tables of tokens are on disk already, as in every epoch but a collection's first.
    """
    from hydra.utils import instantiate

    from conf.command import compose_command
    from train import prepare_model

    with TemporaryDirectory() as folder:
        config = compose_command("train", [*TINY, f"output={folder}"])
        made = instantiate(config.data)
        model = prepare_model(config, made, Path(folder))
        list(made.train_dataloader())
        data = instantiate(config.data)
        assert data.tokenizer  # it is opened, and the collection with it
        with traced() as before:
            batch = next(iter(data.train_dataloader()))
        with traced() as after:
            model.training_step(batch)
        model.eval().index(data.documents, Path(folder, "index"))
        queries = data.evaluation.test_queries("test").select([0])
        with traced() as search:
            model.retrieve(queries, 10)
    kinds = {"a training step": before | after, "its part after the batch": after}
    for kind, files in (kinds | {"a search": search}).items():
        print(f"{kind}: {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()

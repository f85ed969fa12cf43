"""Checkpoints that are whole or not there, whatever the strategy: one file, written by rank 0."""

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from gr_mvdr.files.writing import new_file


class CheckpointFile(TorchCheckpointIO):
    """Writes next to the checkpoint's place, flushes, renames: the one before stays until then.

    Lightning's own goes through the system's temporary folder, from where a file is copied if that
    is another disk: a kill in the copy leaves a cut checkpoint in the place of the whole one.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint.

        Raises:
            OSError: it cannot be written; names `path`. The checkpoint before is untouched.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as partial, partial.open("wb") as stream:
            file = _Written(stream)
            try:
                torch.save(checkpoint, file)
            except RuntimeError:  # of torch's writer, which hides what went wrong
                raise file.error or RuntimeError(f"{path}: could not be written") from None

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Reads a checkpoint.

        Raises:
            ValueError: the file is no whole checkpoint.
        """
        try:
            found = super().load_checkpoint(path, *arguments, **options)
        except (RuntimeError, EOFError) as error:
            reason = (str(error).splitlines() or ["it is empty"])[0][:100]
            raise ValueError(
                f"{path}: is damaged ({reason}): remove it, and training begins again"
            ) from error
        # Lightning removes the checkpoint that a checkpoint names, wherever that is.
        for state in found.get("callbacks", {}).values():
            state |= {key: "" for key in state if key.endswith("_model_path")}
            state |= {"best_k_models": {}} if "best_k_models" in state else {}
        return found


class _Written:
    """A file that remembers why it could not be written to."""

    def __init__(self, file: Any):
        self.file, self.error = file, None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()

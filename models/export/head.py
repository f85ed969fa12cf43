"""What an output table other than the T5's own must be exported with: which token each row is."""

from typing import Any

import torch
from torch import Tensor

from gr_mvdr.heads.non_parametric import NonParametricHead
from gr_mvdr.heads.pawa import PawaHead
from gr_mvdr.heads.plain import Vocabulary
from gr_mvdr.parts import build
from models.encoder_decoder import EncoderDecoder


def head_rows(head: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A head's settings (what JSON can hold) and its rows' tensors; {} where row v is token v.

    Its parameters are the system's and not part of this.
    """
    if isinstance(head, NonParametricHead):
        state = head.table_state()
        return {"collection": state.pop("collection")}, state
    if isinstance(head, PawaHead):
        settings = {"first_token": head.first_token, "width": head.width}
        return settings | {"trained": len(head.projection)}, {"row_tokens": head.row_tokens}
    return {}, {}


def make_head(system: EncoderDecoder, settings: dict[str, Any], rows: dict[str, Tensor]) -> None:
    """Gives a system the head that was exported, before its parameters are loaded.

    Args:
        system: on the exported T5; settings, rows: as from `head_rows`.
    """
    if not rows:
        return
    tokens = rows["row_tokens"]
    # Rows of tokens that came after training have no parameters and stand last.
    trained = tokens[: settings.get("trained")]
    known = {name: settings[name] for name in ("first_token", "width") if name in settings}
    vocabulary = Vocabulary(trained, **known)
    system.head = build("head", system.hparams.head, system.backbone, vocabulary=vocabulary)
    if isinstance(system.head, NonParametricHead):
        system.head.load_table_state({**rows, "collection": settings["collection"]})
    else:
        system.head.set_rows(torch.clone(tokens))

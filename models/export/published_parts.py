"""Parts of a published checkpoint's folder: its modules, its projection, its tokens, its values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from gr_mvdr.files import check_files, read_json, read_json_list, read_weights, reading
from gr_mvdr.options import show
from gr_mvdr.template import Ids, TextTemplate, read_template

SIDES = ("query", "document")
UNLIMITED = 2**15  # tokens kept of a text where a folder sets no limit
MODULES = "modules.json"
_KINDS = ("Transformer", "Dense", "MultiVectorMask", "Normalize")
_TOKENS = "token_embeddings"
# Words of several kinds: what is before all of them as before these, changes no text.
PROBES = ("which", "a.b", "Zürich", "42")


def read_parts(folder: Path) -> list[tuple[str, Path]]:
    """Kinds and folders of the modules, in their order; the first is the encoder.

    A class is known by the last part of its name: releases move their classes between modules.
    """
    file, found = folder / MODULES, []
    for number, part in enumerate(read_json_list(file)):
        path, kind = (part.get(n) if isinstance(part, dict) else None for n in ("path", "type"))
        if not isinstance(path, str) or not isinstance(kind, str):
            raise ValueError(f"{file}: [{number}]: must have path and type, both texts")
        name, place = kind.rpartition(".")[2], folder / path
        if name == "Pooling":
            raise ValueError(
                f"{folder}: is a SentenceTransformer with one vector a text, "
                "must be a MultiVectorEncoder, or PyLate's or colbert-ai's"
            )
        if name not in _KINDS:
            raise wrong(file, f"[{number}].type", kind, f"one of {', '.join(_KINDS)}")
        if not place.resolve().is_relative_to(folder.resolve()):
            raise wrong(file, f"[{number}].path", path, "within the folder")
        found.append((name, place))
    if [kind for kind, _ in found[:1]] != ["Transformer"] or _count(found, "Transformer") > 1:
        raise ValueError(f"{file}: must begin with a Transformer, and have no other")
    return found


def _count(parts: Sequence[tuple[str, Path]], name: str) -> int:
    return sum(kind == name for kind, _ in parts)


def read_projection(parts: Sequence[tuple[str, Path]], encoder: Path) -> Tensor:
    """(dimension, hidden size) the product of a folder's Dense modules; without any, the states."""
    dense = [(path, _read_dense(path)) for kind, path in parts if kind == "Dense"]
    if not dense:
        return torch.eye(_config(encoder).hidden_size)
    check_width(dense[0][0], "in_features", dense[0][1], encoder)
    for (_, before), (path, matrix) in pairwise(dense):
        if matrix.shape[1] != len(before):
            raise wrong(
                path / "config.json", "in_features", matrix.shape[1], f"{len(before)}, as before it"
            )
    # In float64: a product of matrices is rounded once.
    product = reduce(lambda before, now: now @ before, (m.double() for _, m in dense))
    return product.float()


def _read_dense(path: Path) -> Tensor:
    """(out, in) the matrix of one Dense module; a residual is an identity, or a second matrix."""
    file = path / "config.json"
    settings = read_json(file)
    activation = str(settings.get("activation_function"))
    if activation.rpartition(".")[2] != "Identity":
        raise wrong(file, "activation_function", activation, "torch.nn.modules.linear.Identity")
    for key in ("module_input_name", "module_output_name"):
        if settings.get(key) not in (None, _TOKENS):
            raise wrong(file, key, settings[key], _TOKENS)
    weights = read_weights(path)
    if settings.get("bias") or "linear.bias" in weights:
        raise wrong(file, "bias", True, "false: a projection has no bias here")
    if "linear.weight" not in weights:
        raise ValueError(f"{path}: must have linear.weight among its weights")
    matrix = check_matrix(path, "linear.weight", weights["linear.weight"])
    for key, size in zip(("out_features", "in_features"), matrix.shape, strict=True):
        if settings.get(key) != size:
            raise wrong(file, key, settings.get(key), f"{size}, as of linear.weight")
    if settings.get("use_residual"):
        given = weights.get("residual.weight")
        square = matrix.shape[0] == matrix.shape[1]
        if given is None and not square:
            raise ValueError(f"{path}: use_residual=true: must have residual.weight")
        if square:  # sentence-transformers adds the vectors themselves
            given = torch.eye(len(matrix))
        matrix = matrix + check_matrix(path, "residual.weight", given)
    return matrix


def check_matrix(source: Path, name: str, weight: Tensor) -> Tensor:
    if weight.ndim != 2 or not weight.is_floating_point():
        found = f"{tuple(weight.shape)} of {str(weight.dtype).removeprefix('torch.')}"
        raise ValueError(f"{source}: {name}: must be a matrix of floats, found {found}")
    return weight.float()


def _config(encoder: Path) -> PretrainedConfig:
    if not (encoder / "config.json").is_file():
        raise FileNotFoundError(f"{encoder / 'config.json'}: no such file")
    check_files(encoder)
    with reading(f"{encoder / 'config.json'}"):
        return AutoConfig.from_pretrained(encoder, trust_remote_code=False)


def check_width(source: Path, key: str, matrix: Tensor, encoder: Path) -> None:
    if matrix.shape[1] != (size := _config(encoder).hidden_size):
        rule = f"{size}, the hidden size of {encoder / 'config.json'}"
        raise wrong(source, key, matrix.shape[1], rule)


# Tokens ---------------------------------------------------------------------------------------


class FolderTokens:
    """A folder's tokeniser, and what its settings say in tokens."""

    def __init__(self, encoder: Path):
        check_files(encoder)
        with reading(f"{encoder}: its tokeniser"):
            self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                str(encoder), trust_remote_code=False, local_files_only=True
            )
        self.encoder, self._blanks = encoder, set[str]()

    def ids(self, text: str) -> tuple[int, ...]:
        """The tokens of a text alone, in which special tokens are found."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _id(self, token: str) -> int | None:
        found = self.tokenizer.convert_tokens_to_ids(token)
        unknown = found is None or found == self.tokenizer.unk_token_id
        return None if unknown and token != self.tokenizer.unk_token else found

    def template(
        self, markers: Mapping[str, Ids], skip: Ids, expansion: int | None
    ) -> TextTemplate:
        """What the tokeniser puts around texts, with the markers of both sides."""
        own = read_template(self.tokenizer)
        # `read_template` ends every text; a published model reads no more than its tokeniser gives.
        after = self.tokenizer("a")["input_ids"][len(own.query) + len(self.ids("a")) :]
        sides = {side: getattr(own, side) + markers[side] for side in SIDES}
        found = replace(own, **sides, suffix=tuple(after), skip=skip, expansion=expansion)
        if found.special[-1] >= (rows := _config(self.encoder).vocab_size):
            name = self.tokenizer.convert_ids_to_tokens(found.special[-1])
            raise ValueError(f"{self.encoder}: {name!r} must be one of the encoder's {rows} tokens")
        return found

    def known(self, words: Sequence[str]) -> Ids:
        """The ids of words that are tokens; others are no token that a document could drop."""
        found = (self._id(word) for word in words)
        return tuple(sorted({token for token in found if token is not None}))

    def first_of(self, symbols: str) -> Ids:
        """colbert-ai's rule: the first token of each symbol, whatever it is."""
        return tuple(sorted({ids[0] for symbol in symbols if (ids := self.ids(symbol))}))

    def one(self, file: Path, key: str, token: Any) -> Ids:
        """The id of a marker. PyLate and colbert-ai put the id itself after the first token."""
        if not isinstance(token, str) or (found := self._id(token)) is None:
            raise wrong(file, key, repr(token), "a token of the folder's tokeniser")
        return (found,)

    def prompt(self, file: Path, side: str, text: Any) -> Ids:
        """The ids of a text that sentence-transformers puts before every other one.

        Raises:
            ValueError: the words after it are not read as they are without it.
        """
        if text is not None and not isinstance(text, str):
            raise wrong(file, f"prompts.{side}", text, "text")
        text = text or ""
        for blank, head in (("", text), (" ", text.rstrip(" "))):
            ids = self.ids(head)
            if all(self.ids(text + w) == ids + self.ids(blank + w) for w in PROBES):
                break
        else:
            rule = "a text that changes no token of what follows it"
            raise wrong(file, f"prompts.{side}", repr(text), rule)
        self._blanks.add(blank)
        if len(self._blanks) > 1:
            raise ValueError(f"{file}: prompts: must both end in a blank, or neither of them")
        return ids

    @property
    def prefix_space(self) -> bool | None:
        """Whether texts are read as they are after a blank, one that ends the prompts."""
        return True if self._blanks == {" "} else None

    def filler(self, file: Path, token: Any) -> int:
        """The id that queries are filled with: the one named, else [MASK], else the end token."""
        if token is not None:
            return self.one(file, "query_expansion.token", token)[0]
        for found in (self.tokenizer.mask_token_id, self.tokenizer.eos_token_id):
            if found is not None:
                return found
        raise wrong(file, "query_expansion.token", None, "a token: there is no mask or end token")

    @property
    def limit(self) -> int:
        """Tokens that the encoder reads at most: the tokeniser's limit, within its positions."""
        positions = getattr(_config(self.encoder), "max_position_embeddings", None)
        limits = (self.tokenizer.model_max_length, positions, UNLIMITED)
        return min(limit for limit in limits if limit is not None and limit > 0)


# Values ---------------------------------------------------------------------------------------


def wrong(file: Path, key: str, value: Any, rule: str) -> ValueError:
    return ValueError(f"{file}: {key}={show(value)}: must be {rule}")


def read_whole(file: Path, settings: dict[str, Any], key: str, default: int | None) -> int | None:
    value = settings.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise wrong(file, key, value, "a whole number ≥ 1")
    return value


def read_keys(file: Path, settings: dict[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key) or {}
    if not isinstance(value, dict):
        raise wrong(file, key, value, "a group of keys")
    return value


def read_words(file: Path, settings: dict[str, Any], key: str, default: list[str]) -> list[str]:
    value = settings.get(key)
    value = default if value is None else value
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise wrong(file, key, value, "a list of words")
    return value

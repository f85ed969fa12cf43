"""Changes to a folder that its maker could make: bytes, values, names, links."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

SIZES = ("num_layers", "num_decoder_layers", "num_heads")  # more of them is only slower


def payloads(marker: Path) -> list[dict[str, Any]]:
    """Configurations that would leave a marker if they ran."""
    writer = "gr_mvdr.evaluation.ranking.write_qrels"
    return [
        {"_target_": "os.system", "command": f"touch {marker}"},
        {"_target_": "payload_module.Part"},
        {"_target_": writer, "qrels": {}, "path": str(marker)},
        {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.system"}},
    ]


def values(rng: random.Random, marker: Path) -> Any:
    """A value of another type, another place, or a payload."""
    deep: Any = "x"
    for _ in range(rng.choice((2, 60, 3000))):
        deep = [deep]
    plain = [None, True, -1, 2.5, float("nan"), "", "x" * 5000, [], {}, [None], {"a": 1}]
    texts = [
        str(marker),
        f"../../../{marker.name}",
        "/dev/null",
        "a\0b",
        "${oc.env:HOME}",
        "\x1b[2J",
    ]
    attacks = payloads(marker)
    return rng.choice([rng.choice(plain), rng.choice(texts), deep, *rng.sample(attacks, 2)])


def change_target(node: Any, rng: random.Random, marker: Path) -> None:
    """A part that is named somewhere is another class, or a payload."""
    found, waiting = [], [node]
    while waiting:
        one = waiting.pop()
        below = list(one.values() if isinstance(one, dict) else one)
        waiting += [part for part in below if isinstance(part, dict | list)]
        if isinstance(one, dict) and ("_target_" in one or "system" in one):
            found.append(one)
    if not found:
        return change_value(node, rng, marker)
    one, attack = rng.choice(found), rng.choice(payloads(marker))
    name = "_target_" if "_target_" in one else "system"
    if rng.random() < 0.7 and name == "_target_":
        one.clear()
        one.update(attack)
    else:
        one[name] = attack["_target_"]


def change_value(node: Any, rng: random.Random, marker: Path) -> None:
    """One value below a dict or list is changed, removed, or joined by another."""
    while True:
        keys = [k for k in (node if isinstance(node, dict) else range(len(node))) if k not in SIZES]
        below = [k for k in keys if isinstance(node[k], dict | list) and node[k]]
        if not below or rng.random() < 0.35:
            break
        node = node[rng.choice(below)]
    action = rng.random()
    if not keys or action < 0.15:
        key = rng.choice(["_target_", "_partial_", "extra", "store", "backbone", "path"])
        if isinstance(node, dict):
            node[key] = values(rng, marker)
    elif action < 0.3:
        del node[rng.choice(keys)]
    else:
        node[rng.choice(keys)] = values(rng, marker)


def change_data(file: Path, rng: random.Random, marker: Path) -> None:
    """A value of a YAML or JSON file, or of a checkpoint."""
    if file.suffix == ".ckpt":
        state = torch.load(file, weights_only=True)
        if rng.random() < 0.8:
            change = rng.choice([change_value, change_target])
            change(state["hyper_parameters"], rng, marker)
        else:
            name = rng.choice(list(state["state_dict"]))
            changed = rng.choice([torch.zeros(3), torch.full((2, 2), float("nan")), "x", None])
            state["state_dict"][name] = changed
        torch.save(state, file)
        return
    text = file.read_text()
    found = yaml.safe_load(text) if file.suffix == ".yaml" else json.loads(text)
    rng.choice([change_value, change_target])(found, rng, marker)
    try:
        file.write_text(yaml.safe_dump(found) if file.suffix == ".yaml" else json.dumps(found))
    except RecursionError:
        file.write_text("a: " + "[" * 3000 if file.suffix == ".yaml" else "[" * 100_000)


def change_bytes(file: Path, rng: random.Random, marker: Path) -> None:
    """Bytes flipped, cut off, doubled, or all replaced."""
    content = bytearray(file.read_bytes())
    kind = rng.choice(["flip", "cut", "double", "replace"])
    if kind == "flip" and content:
        for _ in range(rng.randint(1, 8)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[rng.randrange(len(content) + 1) :]
    elif kind == "double":
        content = content * 2
    else:
        content = bytearray(rng.randbytes(rng.choice((0, 7, 300))))
    file.write_bytes(content)


def change_entry(file: Path, rng: random.Random, marker: Path) -> None:
    """The file is gone, a link out of the folder, a folder, a pipe or a device without an end."""
    file.unlink()
    kind = rng.choice(["gone", "link", "dangling", "folder", "pipe", "device"])
    if kind == "link":
        file.symlink_to(marker.with_name("precious"))
    elif kind == "dangling":
        file.symlink_to(marker)
    elif kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")


DATA = (".yaml", ".json", ".ckpt")
TELLING = ("config.yaml", "last.ckpt", "gr_mvdr.json", "provenance.json")  # most depends on them


def mutate(folder: Path, rng: random.Random, marker: Path) -> list[str]:
    """Changes a folder in one to three places; says which."""
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        files = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix)
        described = [file for file in files if file.suffix in DATA]
        described += [file for file in described if file.name in TELLING] * 8
        kind: Callable = rng.choice([change_data] * 5 + [change_bytes] * 3 + [change_entry])
        file = rng.choice(described if kind is change_data else files)
        try:
            kind(file, rng, marker)
        except (ValueError, yaml.YAMLError, RuntimeError, OSError, AttributeError, TypeError):
            change_bytes(file, rng, marker) if file.is_file() else None  # it was broken already
        done.append(f"{kind.__name__} {file.relative_to(folder)}")
    return done

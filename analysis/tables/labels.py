"""Labels: what tells the runs of one system apart, in a few words ("alignment=softmax")."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

SHOWN_CHOICES = 3  # more differences than these do not fit a label
SHOWN_VALUE = 40  # letters of a choice's value in a label
# Keys, with all below them, that change nothing of what a system finds.
_SILENT = ("study", "data.metrics", "trainer.callbacks", "trainer.plugins")
_SIDES = ("query", "document")  # where a part has one for each, its name is what is above
_VAGUE = ("name", "path")  # words that say nothing without the one before
_FIRST = ("model", "data", "trainer")  # whose keys keep their last word, where others share it
_TARGET = "._target_"
Choices = Mapping[str, str]  # flat key → value, as `Run.choices`


def label_groups(systems: Sequence[str], choices: Sequence[Choices]) -> tuple[list[str], list[str]]:
    """Names groups of runs by their system and what tells them from its other groups.

    Args:
        systems: of each group; choices: of each group, in the same order.

    Returns:
        A distinct label for each group, and a line for each that only a number tells apart.
    """
    labels, notes = [], []
    for number, (system, own) in enumerate(zip(systems, choices, strict=True)):
        rivals = [n for n, other in enumerate(systems) if other == system]
        told = tell_apart([choices[n] for n in rivals])[rivals.index(number)]
        label = described = f"{system} ({', '.join(told)})" if told else system
        count = 1
        while label in labels:
            label = f"{described} #{(count := count + 1)}"
        if count > 1:
            keys = differing_keys(own, choices[labels.index(described)])
            notes.append(f"{label}: differs from {described} in {', '.join(keys)}")
        labels.append(label)
    return labels, notes


def differing_keys(one: Choices, other: Choices) -> list[str]:
    """The keys whose values differ, the first few of them."""
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return keys[:SHOWN_CHOICES] + ["…"] * (len(keys) > SHOWN_CHOICES)


def check_labels(labels: Sequence[object], names: Sequence[Sequence[str]]) -> list[str]:
    """The user's labels as text.

    Args:
        labels: one for each group of runs, section by section.
        names: the groups of each section, as they would be called without labels.

    Raises:
        ValueError: not as many as groups, one is empty, or two of a section are equal.
    """
    texts, asked = list(map(str, labels)), [name for section in names for name in section]
    typed = f"labels=[{', '.join(texts)}]"
    if len(texts) != len(asked):
        one = "one for each of the runs" if len(asked) > 1 else "one for the only run"
        raise ValueError(
            f"{typed}: must be {len(asked)}, {one} (seeds of one system are one): "
            f"{', '.join(asked)}"
        )
    if not all(text.strip() and text.isprintable() for text in texts):
        raise ValueError(f"{typed!r}: must be printable texts, none of them empty")
    rest = iter(texts)
    for section in names:
        found = [next(rest) for _ in section]
        if len({*found}) < len(found):
            raise ValueError(f"{typed}: must be distinct")
    return texts


def tell_apart(rivals: Sequence[Choices]) -> list[list[str]]:
    """What each of some runs chose otherwise than another of them: `["alignment=softmax"]`.

    Keys are as short as they can be, and one choice that several keys repeat is told once. Where
    the parts differ, their arguments are told among runs of the same part only.
    """
    shown = [_select_choices(choices) for choices in rivals]
    told: dict[str, dict[int, str]] = {}  # key → number of the run → its value
    for key in sorted(dict.fromkeys(key for own in shown for key in own), key=_place):
        for number, own in enumerate(shown):
            others = [n for n in range(len(shown)) if _differ(key, number, n, rivals, shown)]
            if key in own and others:
                told.setdefault(key, {})[number] = own[key]
    names: dict[str, dict[int, str]] = defaultdict(dict)
    for key, values in told.items():
        if any(_brings(folders, values) for folders in told.values()):
            continue
        fitting = (name for name in _names(key) if _agree(names.get(name, {}), values))
        names[next(fitting, key)] |= values
    if len(names) > SHOWN_CHOICES:  # too many for a label: what most of the runs share is left out
        names = {name: _drop_usual(values, len(rivals)) for name, values in names.items()}
    result = []
    for number in range(len(rivals)):
        chosen = {name: values[number] for name, values in names.items() if number in values}
        own = [f"{name}={_cut(value)}" for name, value in chosen.items()]
        result.append(own[:SHOWN_CHOICES] + ["…"] * (len(own) > SHOWN_CHOICES))
    return result


def _brings(folders: Mapping[int, str], files: Mapping[int, str]) -> bool:
    """Whether the files of a key are in the folders of another: initial=RUN brings a tokeniser."""
    named = {number: folder for number, folder in folders.items() if folder != "null"}
    found = [files.get(number, "").startswith(f"{folder}/") for number, folder in named.items()]
    return bool(found) and all(found)


def _drop_usual(values: Mapping[int, str], size: int) -> dict[int, str]:
    """The values of some of `size` runs, without the one that more than half of the runs have."""
    counts = Counter(values.values())
    return {number: value for number, value in values.items() if 2 * counts[value] <= size}


def _select_choices(choices: Choices) -> dict[str, str]:
    """The choices that labels show: a part by its name, values as YAML has them."""
    shown = {}
    for key, value in choices.items():
        if any(f"{key}.".startswith(f"{silent}.") for silent in _SILENT):
            continue
        if key.endswith(_TARGET):
            key = key.removesuffix(_TARGET)
            value = _name_part(key, value)
        shown[key] = {"None": "null", "True": "true", "False": "false"}.get(value, value)
    return shown


def _cut(value: str) -> str:
    return value if len(value) <= SHOWN_VALUE else f"{value[: SHOWN_VALUE - 1]}…"


def _name_part(key: str, target: str) -> str:
    """A class as its group has it: "gr_mvdr.salience.IdfSalience" of the salience is "idf"."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.rpartition(".")[2]).lower()
    kind = next(_names(key))
    return "plain" if name == kind else name.removesuffix(f"_{kind}")


def _differ(
    key: str, one: int, other: int, rivals: Sequence[Choices], shown: Sequence[Choices]
) -> bool:
    """Whether two runs differ in a key, and not in the part that it is an argument of."""
    owner = _owner(key, rivals[one])
    if owner and rivals[one][owner] != rivals[other].get(owner):
        return False
    return shown[one].get(key) != shown[other].get(key)


def _owner(key: str, choices: Choices) -> str:
    """The `_target_` of the innermost part that a key is an argument of; "" of none."""
    parts = key.split(".")[:-1]
    above = (".".join(parts[:length]) + _TARGET for length in range(len(parts), 0, -1))
    return next((target for target in above if target in choices), "")


def _place(key: str) -> tuple[bool, int]:
    """Keys of one word come first: they have no longer name. Then those of `_FIRST`."""
    first = key.partition(".")[0]
    return "." in key, _FIRST.index(first) if first in _FIRST else len(_FIRST)


def _names(key: str) -> Iterator[str]:
    """A key's names, the shortest first: "salience", "salience.query", "model.salience.query"."""
    parts = key.split(".")
    if parts[-1] in _SIDES and len(parts) > 1:
        yield parts[-2]
    least = 2 if parts[-1] in (*_SIDES, *_VAGUE) else 1
    for length in range(min(least, len(parts)), len(parts) + 1):
        yield ".".join(parts[-length:])


def _agree(one: Mapping[int, str], other: Mapping[int, str]) -> bool:
    return all(one[number] == other[number] for number in one.keys() & other.keys())

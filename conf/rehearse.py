"""`rehearse=true` on the command line: Hydra knows it as the group option `rehearsal=…`."""

from pathlib import Path

REHEARSALS = Path(__file__).parent / "rehearsal"
KEY = "rehearse"


def rehearsed(arguments: list[str]) -> list[str]:
    """Puts the recipe's rehearsal in the place of `rehearse=true`; Hydra refuses true as an option.

    A recipe is rehearsed by the file of `conf/rehearsal` that its name begins with ("aligner" of
    `experiment=aligner_table6`), any other by `small`.

    Args:
        arguments: of the command line.

    Raises:
        ValueError: `rehearse` is neither true nor false.
    """
    kept = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key != KEY:
            kept.append(argument)
        elif value not in ("true", "false"):
            raise ValueError(f"{argument}: must be true or false")
        elif value == "true":
            kept.append(f"rehearsal={rehearsal_of(arguments)}")
    return kept


def rehearsal_of(arguments: list[str]) -> str:
    """Which file of `conf/rehearsal` a command's recipe is rehearsed by."""
    recipes = [a.partition("=")[2] for a in arguments if a.startswith("experiment=")]
    paper = recipes[-1].split("_")[0] if recipes else ""
    return paper if (REHEARSALS / f"{paper}.yaml").is_file() else "small"

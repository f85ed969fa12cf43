"""Ends a sweep with a comparison of its runs, and their studies as one table.

A Hydra callback, named in `conf/`. Hydra makes it before a command line's values are checked, so
what is heavy is imported when a sweep has ended.
"""

import hashlib
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from conf.wandb_logger import GROUP
from gr_mvdr.files import CIRCUMSTANCES

if TYPE_CHECKING:
    from analysis.runs.run_folder import Run
    from analysis.studies.study import Curves
    from analysis.tables.comparison import Comparison
    from analysis.tables.rows import Row

SHOWN_KEYS = 50  # letters of the swept keys in a group's name
MOST_NAMED = 3  # collections in a title
# Columns that every row has anyway, under a name of their own.
_OWN_COLUMNS = ("model", "seed")


class CompareRuns(Callback):
    """After `python train.py -m …`: compares the sweep's runs, and merges their studies.

    Args:
        mixed: show runs over different collections or splits apart instead of refusing them.
        paper: a paper's table to compare the runs with: a name in `conf/papers/*.csv`, or a path.
        curves: what to draw of the merged studies: arguments of `Curves`, or a list of such.
        out: the comparison's folder; by default the sweep's. Sweeps that share runs differ in it.
    """

    def __init__(
        self,
        mixed: bool = False,
        paper: str | None = None,
        curves: dict[str, Any] | list[dict[str, Any]] | None = None,
        out: str | None = None,
    ):
        self.mixed, self.paper, self.out = mixed, paper, out
        plain = OmegaConf.to_container(curves) if OmegaConf.is_config(curves) else curves or []
        self.curves = [plain] if isinstance(plain, dict) else plain
        self.choices: dict[Path, dict[str, str]] = {}
        self.names_group = False

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Names the group of a sweep's runs, wherever a launcher starts them."""
        experiment = OmegaConf.select(config, "hydra.runtime.choices.experiment")
        self.names_group = not (experiment or os.environ.get(GROUP))
        if self.names_group:
            os.environ[GROUP] = name_sweep(config)

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        pairs = (line.lstrip("+").split("=", 1) for line in _overrides(config) if "=" in line)
        self.choices[Path(config.run).absolute()] = dict(pairs)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from analysis.compare import compare

        sweep = Path(config.hydra.sweep.dir)
        # Jobs of a launcher with processes of its own are not seen here: then the folder says.
        # A job made no folder where a run of another seed stands for it.
        runs = [run for run in self.choices if run.exists()] or [sweep]
        folder = Path(self.out or sweep)
        # Hydra turns a callback's exception into a warning, so that a sweep without its
        # comparison would exit with 0; SystemExit passes.
        try:
            logger = _read_logger(config)
            comparison = compare(runs, folder, self.mixed, logger, self.paper, make_way=True)
            place, swept = comparison.folder, find_swept_keys(config)
            if place != folder:
                print(f"{folder} holds a comparison of other runs, which stays")
            files = write_sweep_study(comparison, place, swept, self.choices, self.curves)
            print(*files, sep="\n", end="\n" * bool(files))
        except (ValueError, FileNotFoundError) as error:
            sys.exit(f"error: the sweep's runs could not be compared: {error}")
        except Exception:
            traceback.print_exc()
            sys.exit("error: the sweep's runs could not be compared")
        finally:
            if self.names_group:
                del os.environ[GROUP]


def _read_logger(config: DictConfig) -> dict[str, Any] | None:
    """The runs' logger, but for what is a single run's."""
    if not config.get("logger"):
        return None
    logger = OmegaConf.merge(config.logger, {"name": None, "save_dir": None})
    return OmegaConf.to_container(logger, resolve=True)


def name_sweep(config: DictConfig) -> str:
    """`sweep-model-seed-1a2b3c`: the keys that it varies, and a hash of all that was asked for."""
    keys = [re.sub(r"[^\w.]+", "-", key.rpartition(".")[2]) for key in find_swept_keys(config)]
    asked = [line for line in _overrides(config) if line.partition("=")[0] not in CIRCUMSTANCES]
    digest = hashlib.sha256("\n".join(sorted(asked)).encode()).hexdigest()
    return f"{'-'.join(['sweep', *keys])[:SHOWN_KEYS]}-{digest[:6]}"


def find_swept_keys(config: DictConfig) -> list[str]:
    """The keys that a sweep varies: those of its configuration and of its command line."""
    keys = list(OmegaConf.select(config, "hydra.sweeper.params") or ())
    parsed = OverridesParser.create().parse_overrides(_overrides(config))
    keys += [override.get_key_element() for override in parsed if override.is_sweep_override()]
    return list(dict.fromkeys(key.lstrip("+") for key in keys))


def _overrides(config: DictConfig) -> list[str]:
    """What the command line changed, such as "seed=1,2" of a sweep or "seed=1" of its job."""
    return list(OmegaConf.select(config, "hydra.overrides.task") or ())


def write_sweep_study(
    comparison: "Comparison",
    folder: Path,
    swept: Sequence[str],
    choices: Mapping[Path, Mapping[str, str]],
    curves: Sequence[Mapping[str, Any]] = (),
) -> list[Path]:
    """Writes `study.csv` and `study.md` of a sweep, and draws its curves into `figures/`.

    A sweep over collections ends with their average. Nothing is written for another whose runs made
    no study and that asks for no curves.

    Args:
        comparison: the sweep's runs. folder: the sweep's.
        swept: keys of the configuration that the sweep varied, groups included.
        choices: run folder → key → the value on its command line, for the groups.
        curves: what to draw, see `Curves`.

    Returns: the files for people: the table, then the figures.

    Raises:
        ValueError: curves that the table cannot give.
    """
    from analysis.runs.run_folder import STUDY
    from analysis.studies.study import (
        COLLECTION,
        Curves,
        average_collections,
        tabulate_study,
        write_study,
        write_study_table,
    )

    runs = [(s, run) for s in comparison.sections for group in s.groups for run in group.runs]
    drawings, rows = [Curves(**one) for one in curves], []
    across = COLLECTION[1] in swept
    if not (drawings or across or any((run.path / STUDY).is_file() for _, run in runs)):
        return []
    for section, run in runs:
        identity = {"setting": section.setting} if len(comparison.sections) > 1 else {}
        identity |= {"system": run.system}
        identity |= find_swept_values(run, swept, choices.get(run.path, {})) | {"seed": run.seed}
        rows += [identity | row for row in read_run_rows(run)]
    rows += average_collections(rows) if across else []
    title = "; ".join(section.setting for section in comparison.sections[:MOST_NAMED])
    if len(comparison.sections) > MOST_NAMED:
        title = f"{len(comparison.sections)} collections"
    table = tabulate_study(rows, f"{title}; mean ± standard deviation over seeds")
    write_study(rows, folder / STUDY)
    write_study_table(table, folder)
    return [folder / "study.md", *_draw(drawings, rows, title, folder)]


def _draw(
    drawings: Sequence["Curves"], rows: Sequence["Row"], title: str, folder: Path
) -> list[Path]:
    from analysis.figures import Gallery, GalleryEntry
    from analysis.studies.study import draw_curves

    gallery = Gallery(folder / "figures")
    for number, drawing in enumerate(drawings, start=1):
        name = "study" if len(drawings) == 1 else f"study_{number}"
        caption = drawing.caption or "Mean over seeds; whiskers are their standard deviation."
        gallery.add(draw_curves(drawing, rows, title), GalleryEntry(name, drawing.title, caption))
    return gallery.paths


def read_run_rows(run: "Run") -> list["Row"]:
    """The rows of a run's study; without one, a row of its main metrics and costs."""
    from analysis.runs.run_folder import STUDY
    from analysis.studies.study import is_measure
    from analysis.tables.rows import read_rows

    table = run.path / STUDY
    if table.is_file():
        return read_rows(table)
    row = {}
    for key, value in run.metrics.items():
        name = key.removeprefix("retrieve/")
        of_a_split = name.count("/") > 1 or (name != key and "/" in name)
        if is_measure(name) and not (of_a_split and not name.startswith("cost/")):
            row[name] = value
    return [row]


def find_swept_values(run: "Run", swept: Sequence[str], choices: Mapping[str, str]) -> "Row":
    """What a run chose of each swept key.

    Args:
        swept: keys such as "model.dimension", or groups such as "salience".
        choices: of the run's command line, key → value.
    """
    from analysis.tables.rows import describe_value

    row = {}
    for key in (key for key in swept if key not in _OWN_COLUMNS):
        value: Any = None if "@" in key else run.config
        for word in key.split("."):
            value = value.get(word) if isinstance(value, dict) else None
        # A group's content may be anything; its option's name says it in a word.
        if (isinstance(value, dict) and "_target_" not in value) or value is None:
            value = choices.get(key, value)
        row[key] = describe_value(value)
    return row

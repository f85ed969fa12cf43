"""A run in a few lines of text: how a single run ends in a terminal, and its repr in a notebook."""

from analysis.runs.run_folder import Run
from analysis.tables import metric_names
from analysis.tables.report import tabulate_sections
from analysis.tables.rows import format_text
from gr_mvdr.evaluation.metrics import is_metric
from gr_mvdr.options import make_printable


def summarise_run(run: Run) -> str:
    """What a run is, its rankings' metrics split by split, its main costs, its stages' memory.

    Of a docid system also what its identifiers are like.

    Args:
        run: finished, or about to be.
    """
    found = {key: metric_names.Statistic(value) for key, value in run.metrics.items()}
    searched = [key for key in found if is_metric(key.split("/")[-1])]
    ranked = [key for key in searched if metric_names.group(key) in ("retrieve", "rerank")]
    lines = [f"{run.system} on {run.setting}, seed {run.seed}"]
    if ranked:
        ordered = sorted(ranked, key=metric_names.order)
        lines += format_text(tabulate_sections("", found, ordered, corner=""))
    costs = sorted((key for key in found if key.startswith("cost/")), key=metric_names.order)
    lines += [_listed(found, metric_names.headlines(costs, set()))]
    named = [key for key in found if key.startswith("analysis/identifiers/")]
    if levels := [key for key in named if key.count("/") > 2]:
        lines += format_text(tabulate_sections("", found, levels, corner=""))
    if whole := [key for key in named if key not in levels]:
        lines += ["identifiers: " + _listed(found, whole)]
    if stages := [key for key in costs if "_memory_bytes/" in key]:
        lines += format_text(tabulate_sections("", found, stages, corner=""))
    return "\n".join(make_printable(line) for line in lines if line)


def _listed(found: dict[str, metric_names.Statistic], keys: list[str]) -> str:
    return "; ".join(
        f"{metric_names.label(key)} {metric_names.text(key, found[key])}" for key in keys
    )

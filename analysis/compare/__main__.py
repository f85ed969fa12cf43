"""Compares finished runs: ``python -m analysis.compare runs='[outputs/a,outputs/b]'``."""

from conf.command import run_command

run_command("compare", "analysis.compare.comparison:main")

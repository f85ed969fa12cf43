"""Compares finished runs: ``python -m analysis.compare runs='[outputs/a,outputs/b]'``."""

from conf.command import run_command

if __name__ == "__main__":  # the API reference imports this file
    run_command("compare", "analysis.compare.comparison:main")

"""Explores finished runs on a local page: ``python -m analysis.explore runs=outputs/demo``."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("explore", "analysis.explore:main")
    raise SystemExit

from omegaconf import DictConfig

from analysis.runs.run_folder import named_folders
from analysis.viewer.server import open_port, serve
from analysis.viewer.session import open_session


def main(config: DictConfig) -> None:
    """Loads the runs, then serves them on 127.0.0.1 until Ctrl-C."""
    if not (runs := named_folders(config.runs)):
        raise ValueError("runs=[]: must be folders of finished runs, such as runs=outputs/…")
    try:
        with open_port(config.port) as listening:  # before the models are loaded: seconds
            serve(open_session(runs, config.trust), listening, config.open)
    except KeyboardInterrupt:
        pass
    print("explorer: ended")

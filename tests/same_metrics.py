"""Does a redesign change a result? `python -m tests.same_metrics REVISION [MODEL …]`.

Trains, searches and reranks ten systems (or the named ones) on the fixed collection in
`tests/fixtures`, with the code of a git revision and with this checkout, on this machine, and
compares every metric but the costs. A minute or two a model; the exit status is 1 if any differs.
With SAME_METRICS=FOLDER the numbers of the revision are kept there, for the next comparison.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLLECTION = ROOT / "tests" / "fixtures" / "small_collection"
MODELS = ("bm25", "t5_colbert", "t5_seal", "genre", "dsi_semantic", "xtr", "aligner", "mva", "coil")
MODELS += ("genre_np_async",)
TOLERANCE = 1e-6


def measure(code: Path, model: str, output: Path) -> dict[str, float | None]:
    """The metrics that a run leaves, without those that the clock or the machine decides."""
    command = [sys.executable, "train.py", f"model={model}", "data=files", "logger=none"]
    command += [f"data.path={COLLECTION}", "data.test_split=[test,test_unseen]"]
    command += ["data.validation_split=null"]  # every revision then keeps its last step
    command += [f"output={output}", f"name={model}"]
    environment = os.environ | {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=code, env=environment, check=True, stdout=subprocess.DEVNULL)
    metrics = json.loads((output / model / "metrics.json").read_text(encoding="utf-8"))
    varying = ("cost/", "_seconds", "_ms")
    return {k: v for k, v in metrics.items() if not any(word in k for word in varying)}


def differs(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(before - now) > TOLERANCE


def main(revision: str, *models: str) -> None:
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(old), revision], check=True)
        try:
            for model in models or MODELS:
                kept = Path(os.environ.get("SAME_METRICS", folder)) / f"{revision}-{model}.json"
                if not kept.is_file():
                    kept.write_text(json.dumps(measure(old, model, Path(folder) / "before")))
                before = json.loads(kept.read_text())
                now = measure(ROOT, model, Path(folder) / "now")
                names = sorted({*before, *now})
                rows = [(name, before.get(name), now.get(name)) for name in names]
                changed = [row for row in rows if differs(*row[1:])]
                print(f"{model}: {len(names)} metrics, {len(changed)} differ")
                for name, old_value, new_value in changed:
                    print(f"  {name}: {old_value} → {new_value}")
                different += len(changed)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    sys.exit(different > 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])

"""The folder of an RL run: run.json, steps.jsonl, problems.jsonl, evaluations.jsonl, read with errors that name a line.

A half line at the end of a file is what a kill left, and none. Compute that goes back is refused: a run that was
resumed must have cut its log first, or C would be counted twice.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derivedata.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from derivedata.scaling.rl.health import Health
    from derivedata.scaling.rl.interference import Change, Interference
    from derivedata.scaling.rl.points import Curve

RECORD, STEPS, PROBLEMS, EVALUATIONS = "run.json", "steps.jsonl", "problems.jsonl", "evaluations.jsonl"
STEP_COLUMNS = ("reward", "entropy", "kl", "length", "truncated", "zero_variance")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLog:
    """A run as logged; `config` is that of run.json."""

    folder: Path
    name: str
    config: dict[str, Any]
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]

    def number(self, name: str) -> float | None:
        """A number of the configuration, or what the steps say."""
        value = self.config.get(name)
        if value is None and self.steps:
            value = self.steps[0].get({"rollouts_per_problem": "n", "problems_per_batch": "B_p"}.get(name, name))
        return None if value is None else float(value)

    def columns(self) -> dict[str, np.ndarray]:
        """The step log as arrays, NaN where unknown."""
        import numpy as np

        return {
            name: np.array([_float(row.get(name)) for row in self.steps])
            for name in ("step", "rollouts", *STEP_COLUMNS)
        }

    def curve(self, metric: str = "avg") -> Curve | None:
        """Evaluations as a curve; None without any."""
        import numpy as np

        from derivedata.scaling.rl.points import Curve

        rows = [row for row in self.evaluations if row.get(metric) is not None and row.get("rollouts") is not None]
        if not rows:
            return None
        n, problems = self.number("rollouts_per_problem"), self.number("problems_per_batch")
        return Curve(
            run=self.name,
            C=np.array([row["rollouts"] for row in rows], float),
            reward=np.array([row[metric] for row in rows], float),
            n=None if n is None else int(n),
            problems=None if problems is None else int(problems),
            recipe=str(self.config.get("recipe") or ""),
        )

    def health(self) -> Health:
        """The healthy-recipe test."""
        from derivedata.scaling.rl.health import check

        return check(self.name, self.columns(), self.curve())

    def interference(self) -> Interference | None:
        """Per-problem pass rates over time; None without problems.jsonl."""
        import numpy as np

        from derivedata.scaling.rl.interference import interference

        step, name, k, n = [], [], [], []
        for at, row in _lines(self.folder / PROBLEMS):
            try:
                right, asked = float(row["k"]), float(row["n"])
                step.append(float(row["step"]))
                name.append(str(row["problem"]))
            except (KeyError, TypeError, ValueError):
                raise UserError("a line needs step, problem, k and n", where=at) from None
            if not 0 <= right <= asked:
                raise UserError("k lies between 0 and n", where=at, value=f"k {right:g}, n {asked:g}")
            k.append(right)
            n.append(asked)
        return interference(np.array(step), np.array(name), np.array(k), np.array(n)) if step else None

    def change(self) -> Change | None:
        """Sharpening or coverage."""
        import numpy as np

        from derivedata.scaling.rl.interference import sharpening_or_coverage

        if not self.evaluations:
            return None
        columns = {name: np.array([_float(row.get(name)) for row in self.evaluations]) for name in ("best", "worst")}
        return sharpening_or_coverage(columns, int(self.evaluations[-1].get("problems") or 0))


def find_runs(place: str | Path) -> list[Path]:
    """The folder itself if it is a run, else the runs right inside, by name.

    Raises:
        UserError: no such folder, or no run in it.
    """
    place = Path(place)
    if not place.is_dir():
        raise UserError("no such run", where=place)
    if (place / EVALUATIONS).exists() or (place / STEPS).exists():
        return [place]
    found = [
        f
        for f in place.iterdir()
        if f.is_dir() and f.name[0] != "." and ((f / EVALUATIONS).exists() or (f / STEPS).exists())
    ]
    if not found:
        raise UserError("no RL run here", where=place, remedy=f"a run is a folder with {EVALUATIONS}")
    return sorted(found, key=_natural)


def _natural(folder: Path) -> list[tuple[bool, int, str]]:
    """n8 before n16."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"([0-9]+)", folder.name)]


def read_log(folder: Path) -> RunLog:
    """Read a run.

    Raises:
        UserError: a damaged file, or compute that goes back.
    """
    config: dict[str, Any] = {}
    if (folder / RECORD).exists():
        try:
            record = json.loads((folder / RECORD).read_text())
            config = record.get("config", record)
        except (OSError, ValueError, AttributeError) as error:
            raise UserError("not a run record", where=folder / RECORD, value=str(error)) from None
    steps = [row for _, row in _lines(folder / STEPS)]
    evaluations = [row for _, row in _lines(folder / EVALUATIONS)]
    _rising(steps, folder / STEPS)
    # A run may evaluate once more at its end: the last one at a C stands.
    evaluations = list({row.get("rollouts"): row for row in evaluations}.values())
    _rising(evaluations, folder / EVALUATIONS)
    return RunLog(folder=folder, name=folder.resolve().name, config=config, steps=steps, evaluations=evaluations)


def write_log(folder: Path, record: dict[str, Any], **logs: Sequence[dict[str, Any]]) -> None:
    """Write a run's folder whole or not at all.

    Args:
        record: what run.json holds.
        logs: rows of steps, problems, evaluations; an empty log is no file.

    Raises:
        UserError: a run of that name is there already, or the folder cannot be written.
    """
    name = folder.name
    if not name or name.startswith(".") or not name.isprintable():
        raise UserError("not a name for a run's folder", where=folder.parent, value=name, remedy="name it with --run")
    if folder.exists():
        raise UserError("two runs under one name", where=folder, value=name, remedy="name it with --run")
    waiting = folder.with_name(f".{name}.part")
    try:
        shutil.rmtree(waiting, ignore_errors=True)
        waiting.mkdir(parents=True)
        (waiting / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        for log, rows in logs.items():
            if rows:
                (waiting / f"{log}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        waiting.rename(folder)
    except OSError as error:
        raise UserError("cannot be written", where=folder, value=error.strerror) from None


def _rising(rows: Sequence[dict[str, Any]], path: Path) -> None:
    last = -1.0
    for i, row in enumerate(rows):
        value = _float(row.get("rollouts"))
        if value <= last:
            raise UserError(
                "C does not rise: steps counted twice, or two runs in one file",
                where=f"{path}, line {i + 1}",
                value=f"{value:g} rollouts after {last:g}",
            )
        last = last if math.isnan(value) else value


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and line, object) of each whole line."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for i, line in enumerate(file):
            at = f"{path}, line {i + 1}"
            if not line.endswith(b"\n") or not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                raise UserError("not a line of JSON", where=at, value=line[:80].decode("utf-8", "replace")) from None
            if not isinstance(row, dict):
                raise UserError("a line of a log is an object", where=at)
            yield at, row


def _float(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")

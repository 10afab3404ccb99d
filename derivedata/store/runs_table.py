"""Tables of trained runs: CSV, JSONL or Parquet into named columns, with errors that name row and column.

Columns n_params, fresh_tokens, derived_tokens, strategy, loss; derived tokens may be given as epochs or total_tokens.
Optional: seed, weight, cluster. Names match whatever their case, spaces and hyphens; other columns are ignored.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError

ALIASES: dict[str, tuple[str, ...]] = {
    "n_params": ("n_params", "params", "parameters", "num_params", "model_size", "n"),
    "fresh_tokens": ("fresh_tokens", "unique_tokens", "fresh", "d"),
    "derived_tokens": ("derived_tokens", "derived", "d_prime", "dp"),
    "epochs": ("epochs", "n_epochs", "num_epochs"),
    "total_tokens": ("total_tokens", "tokens", "train_tokens"),
    "training_flops": ("training_flops", "training_flop", "flops"),
    "strategy": ("strategy",),
    "loss": ("loss", "val_loss", "eval_loss", "final_loss", "test_loss"),
    "seed": ("seed",),
    "weight": ("weight",),
    "cluster": ("cluster",),
}


@dataclass(frozen=True, slots=True)
class RunsTable:
    """Columns n_params, fresh_tokens, derived_tokens, loss (float), strategy (str), and seed, weight, cluster if given.

    `notes` says what was worked out from other columns, a line each; `others` holds the columns that mean nothing here,
    for conditions on runs.
    """

    columns: dict[str, NDArray]
    notes: tuple[str, ...]
    others: dict[str, NDArray]


def read_runs_table(path: str | Path, *, n_column: str | None = None) -> RunsTable:
    """Read a table of runs.

    Args:
        path: .csv, .tsv, .jsonl, .ndjson or .parquet (CSV and JSONL also compressed as .gz or .zst).
        n_column: column that holds N instead of n_params (a fit names which N it means).

    Raises:
        UserError: no such file, unreadable, a missing column (with the nearest name), a cell that is no number.
    """
    frame = read_frame(Path(path))
    names = {_plain(name): name for name in frame.columns}
    found = {}
    for column, aliases in ALIASES.items():
        wanted = (_plain(n_column),) if column == "n_params" and n_column else aliases
        match = next((names[alias] for alias in wanted if alias in names), None)
        if match is not None:
            found[column] = frame[match].to_list()
    reader = _Columns(found, frame, str(path), n_column)
    return reader.table()


class _Columns:
    def __init__(self, found: dict[str, list], frame, where: str, n_column: str | None):
        self.found, self.frame, self.where, self.n_column = found, frame, where, n_column
        self.notes: list[str] = []

    def table(self) -> RunsTable:
        N, loss = self._numbers("n_params"), self._numbers("loss")
        fresh, derived, repeats = self._tokens(N)
        columns = {
            "n_params": N,
            "fresh_tokens": fresh,
            "derived_tokens": derived,
            "loss": loss,
            "strategy": self._strategies(derived, repeats),
        }
        if "weight" in self.found:
            columns["weight"] = self._numbers("weight")
            bad = ~(np.isfinite(columns["weight"]) & (columns["weight"] >= 0))
            if bad.any():
                at = int(np.argmax(bad))
                raise UserError("weight must be zero or more", where=self._at(at), value=float(columns["weight"][at]))
        for name in ("seed", "cluster"):
            # A column of empty cells says nothing.
            if name in self.found and any(_given(cell) for cell in self.found[name]):
                columns[name] = np.array([str(c) if _given(c) else None for c in self.found[name]], object)
        others = {
            name: np.array(self.frame[name].to_list(), object) for name in self.frame.columns if name not in columns
        }
        return RunsTable(columns, tuple(self.notes), others)

    def _tokens(self, N: NDArray) -> tuple[NDArray, NDArray, bool]:
        """Fresh and derived tokens, and whether the derived ones are known to be repeats."""
        if "fresh_tokens" not in self.found:
            return self._one_epoch_tokens(N), np.zeros(len(N)), False
        fresh = self._numbers("fresh_tokens")
        if "derived_tokens" in self.found:
            return fresh, self._numbers("derived_tokens"), "epochs" in self.found
        if "epochs" in self.found:
            epochs = self._numbers("epochs")
            self._refuse(epochs < 1, "epochs must be 1 or more", epochs)
            self.notes.append("derived_tokens = (epochs - 1) x fresh_tokens")
            return fresh, (epochs - 1) * fresh, True
        if "total_tokens" in self.found:
            total = self._numbers("total_tokens")
            self._refuse(total < fresh, "total_tokens is less than the fresh tokens", total)
            self.notes.append("derived_tokens = total_tokens - fresh_tokens")
            return fresh, total - fresh, True
        if "strategy" in self.found:
            raise self._missing("derived_tokens", "or epochs, or total_tokens")
        self.notes.append("no derived_tokens, epochs or total_tokens: every run taken as one epoch of fresh tokens")
        return fresh, np.zeros(len(fresh)), False

    def _one_epoch_tokens(self, N: NDArray) -> NDArray:
        derived = {"derived_tokens", "epochs", "strategy"} & set(self.found)
        if "total_tokens" in self.found and not derived:
            self.notes.append("fresh_tokens = total_tokens: every run taken as one epoch")
            return self._numbers("total_tokens")
        if "training_flops" in self.found and not derived:
            self.notes.append("fresh_tokens = training FLOPs / (6 n_params): every run taken as one epoch")
            return self._numbers("training_flops") / (6 * N)
        raise self._missing("fresh_tokens", "or unique_tokens")

    def _strategies(self, derived: NDArray, repeats: bool) -> NDArray:
        if "strategy" not in self.found:
            if (derived > 0).any() and not repeats:
                raise self._missing("strategy", "which says what made the derived tokens")
            return np.array(["repeat" if d > 0 else "" for d in derived], object)
        names = np.array([str(c).strip() if _given(c) else "" for c in self.found["strategy"]], object)
        self._refuse((derived > 0) & (names == ""), "a run with derived tokens names no strategy", derived)
        return names

    def _numbers(self, column: str) -> NDArray:
        if column not in self.found:
            raise self._missing(column)
        values = np.empty(len(self.found[column]))
        for i, cell in enumerate(self.found[column]):
            try:
                values[i] = float(cell) if _given(cell) else math.nan
            except (TypeError, ValueError):
                raise UserError(
                    f"{column} is not a number",
                    where=self._at(i),
                    value=cell,
                    remedy="give plain counts such as 14000000",
                ) from None
        return values

    def _refuse(self, bad: NDArray, what: str, values: NDArray) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            raise UserError(what, where=self._at(at), value=float(values[at]))

    def _at(self, index: int) -> str:
        return f"{self.where}, row {index + 1}"

    def _missing(self, column: str, also: str = "") -> UserError:
        wanted = self.n_column if column == "n_params" and self.n_column else column
        aliases = [_plain(self.n_column)] if wanted == self.n_column else list(ALIASES[column])
        near = [
            name
            for name in self.frame.columns
            if any(
                difflib.SequenceMatcher(None, _plain(name), alias).ratio() > 0.6 for alias in aliases if len(alias) > 2
            )
        ]
        remedy = f"the nearest is {near[0]!r}; rename it" if near else f"it has {', '.join(self.frame.columns[:12])}"
        return UserError(f"no column {wanted}{' (' + also + ')' if also else ''}", where=self.where, remedy=remedy)


def read_frame(path: Path):
    """The rows of a CSV, TSV, JSONL or Parquet file (also .gz, .zst) as a Polars frame; cells of CSV stay text.

    Raises:
        UserError: no such file, another kind of file, unreadable, or without rows.
    """
    import polars as pl

    if not path.is_file():
        raise UserError("no such table of runs", where=path)
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    readers = {
        # Cells as text: a wrong one is then reported by row, not as a failure of type inference.
        ".csv": lambda: pl.read_csv(path, infer_schema=False),
        ".tsv": lambda: pl.read_csv(path, infer_schema=False, separator="\t"),
        ".jsonl": lambda: pl.read_ndjson(path, infer_schema_length=None),
        ".ndjson": lambda: pl.read_ndjson(path, infer_schema_length=None),
        ".parquet": lambda: pl.read_parquet(path),
    }
    suffix = Path(name).suffix
    if suffix not in readers:
        raise UserError("not a table of runs", where=path, value=suffix, remedy=f"known are {', '.join(readers)}")
    try:
        frame = readers[suffix]()
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        raise UserError("cannot be read as a table", where=path, value=str(error).splitlines()[0]) from error
    if frame.height == 0:
        raise UserError("the table holds no runs", where=path)
    return frame


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _given(cell: object) -> bool:
    return cell is not None and cell != "" and not (isinstance(cell, float) and math.isnan(cell))

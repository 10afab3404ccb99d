"""The table of a sweep: which models on how many fresh and derived tokens, as `derivedata eta design` writes it.

Columns n_params, fresh_tokens, derived_tokens (or x), strategy, seed; any other may be there. By hand also lr and
weight_decay, which then stand instead of the grids for that run.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path

from derivedata.errors import UserError
from derivedata.trainers.ladder import Size, find_size

NEEDED = ("n_params", "fresh_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A run that is asked for.

    size: of the ladder. fresh_tokens: D. x: D'/D. strategy: what makes the derived tokens, empty for x = 0. lr,
    weight_decay: of this run alone, or None. row: 1-based, for messages.
    """

    size: Size
    fresh_tokens: int
    x: float
    strategy: str
    seed: int
    lr: float | None
    weight_decay: float | None
    row: int


def read_design(path: str | Path) -> list[Asked]:
    """The runs of a table, duplicates left out.

    Raises:
        UserError: no such file, a missing column, a cell that is no number, no such size: with the row.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = list(reader)
    except FileNotFoundError:
        raise UserError("no such design", where=path, remedy="`derivedata eta design -o FILE.csv` makes one") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError("the design cannot be read", where=path, value=str(error)) from None
    for name in NEEDED:
        if name not in columns:
            raise UserError(f"no column {name}", where=path, remedy=f"it has {', '.join(columns) or 'none'}")
    if not {"x", "derived_tokens"} & set(columns):
        raise UserError("no column derived_tokens, and none x", where=path, remedy=f"it has {', '.join(columns)}")
    asked = [_asked(cells, f"{path}, row {number}", number) for number, cells in enumerate(rows, 1)]
    if not asked:
        raise UserError("the design has no runs", where=path)
    return list({replace(one, row=0): one for one in reversed(asked)}.values())[::-1]


def _asked(cells: dict[str, str], where: str, number: int) -> Asked:
    fresh = _number(cells, "fresh_tokens", where)
    if fresh is None or fresh < 1:
        raise UserError("fresh_tokens must be positive", where=where, value=cells.get("fresh_tokens"))
    # Derived tokens are whole numbers, x was rounded to be written: the former say it more exactly.
    derived = _number(cells, "derived_tokens", where)
    x = derived / fresh if derived is not None else (_number(cells, "x", where) or 0.0)
    if x < 0:
        raise UserError("there are no negative tokens", where=where, value=x)
    strategy = (cells.get("strategy") or "").strip()
    if x > 0 and not strategy:
        raise UserError("a run with derived tokens names its strategy", where=where, remedy="for example repeat")
    n_params = _number(cells, "n_params", where)
    if n_params is None or n_params < 1:
        raise UserError("n_params must be positive", where=where, value=cells.get("n_params"))
    return Asked(
        size=find_size(n_params, where=where),
        fresh_tokens=round(fresh),
        x=x,
        strategy=strategy if x > 0 else "",
        seed=int(_number(cells, "seed", where) or 0),
        lr=_number(cells, "lr", where),
        weight_decay=_number(cells, "weight_decay", where),
        row=number,
    )


def _number(cells: dict[str, str], name: str, where: str) -> float | None:
    text = (cells.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{name} is not a number", where=where, value=text, remedy="give plain counts such as 14000000")
    return value

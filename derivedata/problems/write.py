"""Problems in the two forms that trainers read: verl's rows, and TRL's `prompt` with `answer`.

The schema is fixed whatever the rows hold, so that `datasets`, Polars and DuckDB read any two files alike: what varies
from set to set stands as JSON in `extra_info.other`, carried pass rates in a list of (name, rate).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from derivedata.errors import UserError
from derivedata.problems.problem import Problem


def verl_schema():
    """verl's columns with ours behind them, as a pyarrow schema."""
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    extra = pa.struct(
        [
            ("index", pa.int64()),
            ("split", pa.string()),
            ("uid", pa.string()),
            ("layout", pa.string()),
            ("path", pa.string()),
            ("row", pa.int64()),
            ("other", pa.string()),
        ]
    )
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", extra),
            ("carried_pass_rates", pa.list_(pa.struct([("name", pa.string()), ("rate", pa.float64())]))),
            ("unscored", pa.string()),
        ]
    )


def verl_row(problem: Problem) -> dict:
    """One problem as a row of `verl_schema`."""
    other = dict(problem.extra_info)
    index, split = other.get("index"), other.get("split")
    # An index of another type (a string, a float) stays in `other` as it was.
    index = (
        other.pop("index") if isinstance(index, int) and not isinstance(index, bool) and abs(index) < 2**63 else None
    )
    split = other.pop("split") if isinstance(split, str) else None
    return {
        "data_source": problem.data_source,
        "prompt": [{"role": m["role"], "content": m["content"]} for m in problem.prompt],
        "ability": problem.ability,
        "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
        "extra_info": {
            "index": index,
            "split": split,
            "uid": problem.uid,
            "layout": problem.layout,
            "path": problem.path,
            "row": problem.row,
            "other": json.dumps(other, ensure_ascii=False, default=str, sort_keys=True),
        },
        "carried_pass_rates": [{"name": name, "rate": rate} for name, rate in sorted(problem.carried.items())],
        "unscored": problem.unscored,
    }


def verl_table(problems: Sequence[Problem], columns: Mapping[str, object] | None = None):
    """A pyarrow table in verl's schema.

    Args:
        problems: the rows; unscored ones are written too, with the reason.
        columns: further columns by name, each a pyarrow array (or list) with one value a problem.
    """
    import pyarrow as pa

    table = pa.Table.from_pylist([verl_row(problem) for problem in problems], schema=verl_schema())
    for name, values in (columns or {}).items():
        if name in table.column_names:
            raise UserError("this column belongs to verl's schema", value=name)
        table = table.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    return table


def table_bytes(table) -> bytes:
    """A table as the bytes of a Parquet file (zstd), the same for the same table."""
    import io

    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=10_000)
    return buffer.getvalue()

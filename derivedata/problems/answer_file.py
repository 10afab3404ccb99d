"""Files of gold answers and responses, checked row by row: what `derivedata verify-answers` does.

Rows in = verdicts out: a row without a gold answer or that can't be read is `unscored`, never wrong.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from derivedata.errors import UserError
from derivedata.problems.golds import gold_answers
from derivedata.problems.layouts import reach, solution_answer
from derivedata.problems.read import find_sources, source_rows
from derivedata.problems.verifier import Verdict, Verifier

GOLD_FIELDS = ("gold", "ground_truth", "reward_model.ground_truth", "gold_answer", "final_answer", "answer")
RESPONSE_FIELDS = ("response", "completion", "output", "generation", "prediction", "text", "answer")
_AHEAD = 5_000


@dataclass(frozen=True, slots=True)
class Checked:
    """One row's outcome; `verdict` is "unscored" where there was nothing to compare with."""

    row: int
    gold: str | None
    verdict: Verdict


def choose_fields(row: Mapping, gold_field: str | None, answer_field: str | None) -> tuple[str, str]:
    """The columns of gold answer and response: as named, else the first known names that the row has.

    Raises:
        UserError: one of them can't be found.
    """
    answer_field = answer_field or next(
        (name for name in RESPONSE_FIELDS if name != gold_field and _has(row, name)), None
    )
    gold_field = gold_field or next((name for name in GOLD_FIELDS if name != answer_field and _has(row, name)), None)
    for what, name in (("gold answer", gold_field), ("response", answer_field)):
        if name is None or name.split(".")[0] not in row:
            raise UserError(
                f"no column with the {what}",
                value=name or f"columns {', '.join(map(str, row))}",
                remedy=f"name it with --{'gold' if what.startswith('gold') else 'answer'}-field",
            )
    return gold_field, answer_field


def _has(row: Mapping, name: str) -> bool:
    return name in row or ("." in name and reach(row, name) is not None)


def check_file(
    source: str,
    verifier: Verifier,
    *,
    gold_field: str | None = None,
    answer_field: str | None = None,
    form: str = "boxed",
) -> Iterator[Checked]:
    """Check every row of a jsonl, json or Parquet file (any fsspec URL); outcomes come in the order of the rows.

    Args:
        source: the file.
        verifier: what checks.
        gold_field, answer_field: columns (dots reach into structs); recognised on the first row if not named.
        form: the demanded form, for strict answers.
    """
    sources = find_sources([source])
    if len(sources) != 1:
        raise UserError("name one file", where=source, value=f"{len(sources)} files")
    pending: deque[tuple[int, str | None, Verdict | Future[Verdict]]] = deque()
    fields: tuple[str, str] | None = None
    for number, row in enumerate(source_rows(sources[0])):
        if not isinstance(row, Mapping):
            pending.append((number, None, Verdict("unscored", detail="unreadable row")))
        else:
            fields = fields or choose_fields(row, gold_field, answer_field)
            pending.append((number, *_check_row(row, fields, verifier, form)))
        while pending and (len(pending) > _AHEAD or not isinstance(pending[0][2], Future) or pending[0][2].done()):
            yield _finished(pending.popleft())
    while pending:
        yield _finished(pending.popleft())


def _check_row(row: Mapping, fields: tuple[str, str], verifier: Verifier, form: str):
    gold, response = reach(row, fields[0]), reach(row, fields[1])
    if isinstance(gold, str) and ("####" in gold or "\\boxed" in gold):
        gold = solution_answer(gold)
    golds = gold_answers(gold)
    if not golds:
        return None, Verdict("unscored", detail="no gold answer")
    shown = golds[0] if len(golds) == 1 else json.dumps(golds, ensure_ascii=False)
    if isinstance(response, list) and response and isinstance(response[-1], Mapping):
        # A conversation: what its last message says.
        response = response[-1].get("content")
    if response is None:
        return shown, Verdict("no_answer")
    return shown, verifier.submit(golds, response if isinstance(response, str) else str(response), form=form)


def _finished(entry: tuple[int, str | None, Verdict | Future[Verdict]]) -> Checked:
    number, gold, verdict = entry
    return Checked(number, gold, verdict.result() if isinstance(verdict, Future) else verdict)


COLUMNS = ("row", "gold", "verdict", "answer", "how", "by", "detail", "verifier")


def as_row(checked: Checked, verifier: str) -> dict:
    """One outcome as a flat row of `COLUMNS`."""
    verdict = checked.verdict
    values = (checked.row, checked.gold, verdict.verdict, verdict.answer, verdict.how, verdict.by, verdict.detail)
    return dict(zip(COLUMNS, (*values, verifier), strict=True))


def write_outcomes(path: str, rows: Iterator[dict]) -> Iterator[dict]:
    """Pass outcomes through and write them to `path` (.jsonl or .parquet, by its name) as they come.

    Raises:
        UserError: the name has another ending.
    """
    if path.endswith(".jsonl"):
        return _write_jsonl(path, rows)
    if path.endswith(".parquet"):
        return _write_parquet(path, rows)
    raise UserError("verdicts are written as .jsonl or .parquet", value=path)


def _write_jsonl(path: str, rows: Iterator[dict]) -> Iterator[dict]:
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            yield row


def _write_parquet(path: str, rows: Iterator[dict]) -> Iterator[dict]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.int64() if name == "row" else pa.string()) for name in COLUMNS])
    batch: list[dict] = []
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for row in rows:
            batch.append(row)
            if len(batch) == 10_000:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                batch.clear()
            yield row
        if batch:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))

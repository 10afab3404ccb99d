"""The sets that come out of a measurement: a Parquet file a band in verl's schema, held-out problems, mixtures.

    splits/easy.parquet  hard.parquet  gap.parquet  above.parquet  unscored.parquet     and with --validation also
    splits/easy-validation.parquet  hard-validation.parquet  held-back.parquet

Every problem is in exactly one of them. No text of a validation set is in any other set: further rows with the same
text are held back.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from derivedata.errors import UserError
from derivedata.pipelines.measured import Measured
from derivedata.pipelines.scored import PROBLEMS, UNSCORED
from derivedata.pipelines.source import keyed
from derivedata.problems.problem import Problem
from derivedata.problems.write import table_bytes, verl_schema, verl_table
from derivedata.store.paths import Folder, Missing

if TYPE_CHECKING:
    import pyarrow as pa

HELD_BACK = "held-back"
VALIDATION = "-validation"
# Columns of the table `problems` that verl's schema has in other places.
_ELSEWHERE = frozenset({"uid", "data_source", "ability", "path", "row", "layout", "unscored", "run_id"})


def write_problems(
    folder: Folder, problems: Sequence[Problem], measured: Measured, *, validation: int, seed: int
) -> dict[str, int]:
    """Write problems/problems.parquet and splits/*.parquet; how many problems each split holds.

    Args:
        folder: the output.
        problems: the input with the prompts as they were asked.
        measured: what came out.
        validation: problems held out of each band; at most half of it.
        seed: draws them.
    """
    import pyarrow as pa

    by_uid = {problem.uid: problem for problem in problems}
    rows = measured.problems
    ordered = [_as_measured(by_uid[uid], unscored) for uid, unscored in rows.select("uid", "unscored").iter_rows()]
    bands = measured.bands_rule
    split = assign(
        rows["band"].to_list(),
        rows["prompt_sha256"].to_list(),
        named=[band.name for band in bands.bands],
        validation=validation,
        seed=seed,
    )
    types = {field.name: field.type for field in PROBLEMS} | {"refined": pa.bool_()}
    columns = {name: pa.array(rows[name].to_list(), types[name]) for name in rows.columns if name not in _ELSEWHERE}
    table = verl_table(ordered, {**columns, "split": split})
    folder.replace("problems/problems.parquet", table_bytes(table))
    names = [*bands.names, UNSCORED]
    if validation:
        names += [*(f"{band.name}{VALIDATION}" for band in bands.bands), HELD_BACK]
    counts = {}
    for name in names:
        chosen = table.filter(pa.array([one == name for one in split], pa.bool_()))
        folder.replace(f"splits/{name}.parquet", table_bytes(chosen))
        counts[name] = chosen.num_rows
    for entry in folder.list("splits"):
        if entry.path.removeprefix("splits/").removesuffix(".parquet") not in counts:
            folder.remove(entry.path)
    return counts


def _as_measured(problem: Problem, unscored: str | None) -> Problem:
    from dataclasses import replace

    return problem if problem.unscored == unscored else replace(problem, unscored=unscored)


def assign(
    labels: Sequence[str], texts: Sequence[str], *, named: Sequence[str], validation: int, seed: int
) -> list[str]:
    """The split of each problem: its label, `<band>-validation`, or held-back.

    Args:
        labels: band (or gap, above, below, unscored) of each problem.
        texts: hash of each problem's text.
        named: the bands that get a validation set.
        validation: problems of each, all of different texts; at most half of the band's texts.
        seed: draws them.
    """
    split = list(labels)
    taken: set[str] = set()
    chosen: dict[int, str] = {}
    for band in named if validation else ():
        first: dict[str, int] = {}
        for place, (label, text) in enumerate(zip(labels, texts, strict=True)):
            if label == band and text not in taken:
                first.setdefault(text, place)
        drawn = sorted(first, key=lambda text: keyed(seed, f"validation\n{text}"))[: min(validation, len(first) // 2)]
        taken.update(drawn)
        chosen.update({first[text]: f"{band}{VALIDATION}" for text in drawn})
    for place, text in enumerate(texts):
        if text in taken:
            split[place] = chosen.get(place, HELD_BACK)
    return split


def read_split(folder: Folder, name: str) -> pa.Table:
    """One split (or any other Parquet file under `splits/`).

    Raises:
        UserError: there is none of this name.
    """
    import pyarrow.parquet as pq

    try:
        data = folder.read(f"splits/{name}.parquet")
    except Missing:
        there = sorted(entry.path.removeprefix("splits/").removesuffix(".parquet") for entry in folder.list("splits"))
        raise UserError(
            "no such split",
            where=folder.url,
            value=name,
            remedy=f"there are {', '.join(there)}" if there else "run `derivedata difficulty` first",
        ) from None
    return pq.read_table(io.BytesIO(data))


def parse_shares(parts: Sequence[str]) -> dict[str, float]:
    """Read `easy=.5 hard=.5`: shares of a mixture, which add up to 1.

    Raises:
        UserError: they don't, or one is no number above 0.
    """
    shares: dict[str, float] = {}
    for part in parts:
        name, equals, text = part.partition("=")
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not (name and equals and 0 < share <= 1):
            raise UserError("a share is written band=0.5", value=part)
        if name in shares:
            raise UserError("a band is named twice", value=name)
        shares[name] = share
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise UserError("the shares must add up to 1", value=f"{sum(shares.values()):g}")
    return shares


def mix(folder: Folder, shares: Mapping[str, float], *, size: int, seed: int) -> pa.Table:
    """A set of `size` problems with these shares of the splits, drawn and shuffled by the seed.

    Only splits without validation problems are drawn from, so it is disjoint from them.

    Raises:
        UserError: a split holds too few problems.
    """
    import pyarrow as pa

    for name in shares:
        if name == HELD_BACK or name.endswith(VALIDATION):
            raise UserError("held-out problems can't be trained on", value=name)
    counts = whole_shares(shares, size)
    tables = {name: read_split(folder, name) for name in shares}
    short = [name for name, table in tables.items() if table.num_rows < counts[name]]
    if short:
        most = min(int(tables[name].num_rows / share + 1e-9) for name, share in shares.items())
        told = ", ".join(f"{name} has {tables[name].num_rows:,} of {counts[name]:,}" for name in short)
        raise UserError(
            f"too few problems: {told}", where=folder.url, remedy=f"--size {most} is the most with these shares"
        )
    drawn: list[tuple[bytes, str, int]] = []
    for name, table in tables.items():
        uids = [extra["uid"] for extra in table["extra_info"].to_pylist()]
        order = sorted(range(len(uids)), key=lambda i: keyed(seed, f"mix\n{uids[i]}"))[: counts[name]]
        drawn += [(keyed(seed, f"order\n{uids[i]}"), name, i) for i in order]
    drawn.sort()
    starts, start = {}, 0
    for name, table in tables.items():
        starts[name] = start
        start += table.num_rows
    return pa.concat_tables(tables.values()).take(pa.array([starts[name] + i for _, name, i in drawn], pa.int64()))


def whole_shares(shares: Mapping[str, float], size: int) -> dict[str, int]:
    """Whole numbers that add up to `size` and are nearest to its shares (largest remainders first)."""
    exact = {name: share * size for name, share in shares.items()}
    counts = {name: int(value + 1e-9) for name, value in exact.items()}
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[: size - sum(counts.values())]:
        counts[name] += 1
    return counts


def as_trl(table: pa.Table) -> pa.Table:
    """A split in TRL's form: `prompt` (messages), `answer`, `uid`, `data_source`.

    Raises:
        UserError: a problem in it has no answer.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    answers = pc.struct_field(table["reward_model"], "ground_truth")
    if answers.null_count:
        raise UserError("a problem without an answer can't be trained on", remedy="export a band, not unscored")
    return pa.table(
        {
            "prompt": table["prompt"],
            "answer": answers,
            "uid": pc.struct_field(table["extra_info"], "uid"),
            "data_source": table["data_source"],
        },
        schema=pa.schema(
            [verl_schema().field("prompt"), ("answer", pa.string()), ("uid", pa.string()), ("data_source", pa.string())]
        ),
    )


def file_name(shares: Mapping[str, float], size: int, seed: int) -> str:
    """What a mixture is called: easy50-hard50-5000-seed0."""
    told = "-".join(f"{name}{100 * share:g}" for name, share in shares.items())
    return re.sub(r"[^A-Za-z0-9.-]", "_", f"{told}-{size}-seed{seed}")


def describe(table: pa.Table) -> dict[str, Any]:
    """How many problems of a mixture are of each band."""
    return dict(pl.from_arrow(table.select(["band"])).group_by("band").len().sort("band").iter_rows())

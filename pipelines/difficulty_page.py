"""The report of a measurement as one HTML page: histogram, bands, sources, lengths, examples, carried pass rates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from derivedata.pipelines.difficulty_tables import (
    band_rows,
    books_line,
    full_counts,
    pass_rows,
    percent,
    rate,
    remarks,
    span,
)
from derivedata.pipelines.measured import Measured, read_measured
from derivedata.pipelines.scored import SAMPLE
from derivedata.report.charts import Axis, Points, Words, scatter_by_group
from derivedata.report.page import Page
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder

if TYPE_CHECKING:
    from derivedata.report.style import Picture

EXAMPLES = 3  # problems of each band
SHOWN = 700  # characters of a text


def write_page(output: str, path: str | None = None) -> str:
    """Write the report of `output` to a file, or into the output; where it is.

    Raises:
        UserError: nothing is measured there.
    """
    folder = Folder(output)
    text = build_page(folder).render().encode()
    if path is None:
        folder.replace("report.html", text)
        return folder.url_of("report.html")
    import os

    head, name = os.path.split(os.path.abspath(path))
    Folder(head).replace(name, text)
    return path


def build_page(folder: Folder) -> Page:
    """The page, in the making."""
    measured = read_measured(folder)
    identity, k = measured.identity, measured.k
    scored = measured.scored.height
    page = Page(
        title="Difficulty of problems",
        summary=(
            f"{scored:,} of {measured.problems.height:,} problems scored by {identity['model']}: avg@{k}, temperature "
            f"{identity['temperature']:g}, top-p {identity['top_p']:g}, at most {identity['max_new']:,} new tokens."
        ),
        footer=f"Answers found and checked by {identity['extractor']}; another extractor gives other rates.",
    )
    page.section("Bands")
    page.picture(_histogram(measured))
    page.table(band_rows(measured))
    page.points(*remarks(measured), books_line(measured))
    if rows := pass_rows(measured):
        page.table(rows, caption="At least one right and all right of j samples, unbiased, over the problems")
    page.section("Sources")
    page.table(
        [
            {
                "data source": row["data_source"],
                "problems": row["problems"],
                "mean pass rate": rate(row["mean"]),
                "95% interval": span(row["low"], row["high"], rate),
            }
            for row in measured.by_source()[:30]
        ]
    )
    page.section("Lengths")
    page.prose("A truncated sample ended at the limit of new tokens. It is verified like any other.")
    page.table(_lengths(measured))
    page.section("Examples")
    for label in [band.name for band in reversed(measured.bands_rule.bands)]:
        _examples(page, folder, measured, label)
    if measured.carried.height:
        page.section("Pass rates that came along")
        for picture in _carried(measured):
            page.picture(picture)
        page.points(
            *(
                f"{row['name']}: rank correlation {row['correlation']:.2f} over {row['problems']:,} problems"
                for row in measured.carried_agreement()
            )
        )
    return page


def _histogram(measured: Measured) -> Picture:
    from matplotlib.ticker import MaxNLocator

    from derivedata.report.style import FAINT, Picture, colour, label, new_figure, styled

    k, counts = measured.k, full_counts(measured)
    labels = [measured.bands_rule.names[i] for i in measured.bands_rule.labels_of_counts(k)]
    named = [band.name for band in measured.bands_rule.bands]
    with styled():
        figure, axes = new_figure()
        for name in dict.fromkeys(labels):
            at = [i for i, one in enumerate(labels) if one == name]
            own = colour(named.index(name)) if name in named else FAINT
            axes.bar(at, [counts[i] for i in at], width=0.86, color=own, label=label(name) if name in named else None)
        axes.set_xlabel(label(f"right answers of {k}"))
        axes.set_ylabel(label("problems"))
        axes.grid(axis="x", visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
    left_out = measured.first.filter(pl.col("stopped_early")).height
    caption = "Problems by how many of their samples are right; what is in no band is grey."
    if left_out:
        caption += f" {left_out:,} problems that stopped early are left out."
    return Picture(name="histogram", title="How often problems are solved", caption=caption, figure=figure)


def _lengths(measured: Measured) -> list[dict[str, Any]]:
    rows = []
    for (verdict,), its in measured.rollouts.group_by("verdict", maintain_order=True):
        tokens = its["completion_tokens"].drop_nulls()
        if not len(tokens):
            continue
        rows.append(
            {
                "verdict": verdict,
                "rollouts": its.height,
                "mean tokens": f"{tokens.mean():.0f}",
                "median": f"{tokens.median():.0f}",
                "truncated": percent(its["truncated"].mean()),
            }
        )
    return sorted(rows, key=lambda row: -row["rollouts"])


def _examples(page: Page, folder: Folder, measured: Measured, label: str) -> None:
    """Problems of a band, with a right and a wrong answer each where there are such."""
    its = measured.problems.filter(pl.col("band") == label)
    if not its.height:
        return
    # Those that show both come first.
    both = pl.col("correct").is_between(1, pl.col("n") - 1)
    chosen = its.sort(both, "uid", descending=[True, False]).head(EXAMPLES)
    found = dict(_texts(folder, chosen["uid"].to_list()))
    for row in chosen.to_dicts():
        texts = found.get(row["uid"], {})
        page.note(
            f"{label}: {row['correct']} of {row['n']} right. {row['data_source']}, {row['path']} row {row['row']}"
        )
        if "question" in texts:
            page.code(_short(texts["question"]) + f"\n\nright answer: {texts['ground_truth']}")
        for verdict in ("correct", "wrong"):
            if verdict in texts:
                answer, text = texts[verdict]
                page.prose(f"{verdict}, answer found: {answer}")
                page.code(_short(text))


def _texts(folder: Folder, uids: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each problem its question, right answer, and the first right and first wrong sample."""
    import io

    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    import zstandard

    index = Manifest(folder).view().dataset("rollouts")
    wanted = pc.field("uid").isin(uids) & (pc.field("purpose") == SAMPLE)
    rows = index.to_table(columns=["uid", "sample", "verdict", "file", "row"], filter=wanted).to_pylist()
    needed: dict[str, dict[int, tuple[str, str]]] = {}
    seen: set[tuple[str, str]] = set()
    for row in sorted(rows, key=lambda row: (row["uid"], row["sample"])):
        key = (row["uid"], row["verdict"])
        if row["verdict"] in ("correct", "wrong") and key not in seen:
            seen.add(key)
            needed.setdefault(row["file"], {})[row["row"]] = key
    found: dict[str, dict[str, Any]] = {uid: {} for uid in uids}
    for file, places in needed.items():
        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(folder.read(file)), read_across_frames=True).read()
        lines = data.split(b"\n")
        for place, (uid, verdict) in places.items():
            rollout = json.loads(lines[place])
            found[uid] |= {verdict: (rollout.get("answer"), rollout["text"]), "ground_truth": rollout["ground_truth"]}
    table = pq.read_table(io.BytesIO(folder.read("problems/problems.parquet")), columns=["extra_info", "prompt"])
    keep = pc.is_in(pc.struct_field(table["extra_info"], "uid"), pa.array(uids, pa.string()))
    for row in table.filter(keep).to_pylist():
        found[row["extra_info"]["uid"]]["question"] = "\n".join(message["content"] for message in row["prompt"])
    yield from found.items()


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + f" ... ({len(text) - SHOWN:,} characters more)"


def _carried(measured: Measured) -> Iterator[Picture]:
    agreement: Mapping[str, Mapping] = {row["name"]: row for row in measured.carried_agreement()}
    for number, name in enumerate(agreement):
        its = measured.carried.filter(pl.col("name") == name).drop_nulls("rate")
        both = its.join(measured.scored.select("uid", "avg_at_k"), on="uid")
        # Counts of k fall on top of each other: a little noise shows how many there are.
        noise = np.random.default_rng(0).uniform(-0.4 / measured.k, 0.4 / measured.k, both.height)
        yield scatter_by_group(
            Words(
                name=f"carried-{number}",
                title=f"{name} and the measured rate",
                caption="A point a problem, shaken a little so that equal rates show; the line is equality.",
            ),
            Axis(label=name, limits=(-0.04, 1.04)),
            Axis(label=f"avg@{measured.k} here", limits=(-0.04, 1.04)),
            groups=[Points(name="", x=both["rate"].to_numpy(), y=both["avg_at_k"].to_numpy() + noise)],
            diagonal=True,
        )

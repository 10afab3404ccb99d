"""A measurement in the words and rows in which people read it, on the terminal and on the report's page."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from derivedata.pipelines.measured import Measured
from derivedata.pipelines.scored import COUNTED, FAILED

BAR = 40


def histogram(measured: Measured) -> list[str]:
    """A line a count of right answers (by k first samples of problems sampled in full), with its band."""
    counts, bands = full_counts(measured), measured.bands_rule
    most = max(counts, default=0)
    labels = bands.labels_of_counts(measured.k)
    lines = []
    for correct, problems in enumerate(counts):
        bar = "#" * (0 if not most else -(-problems * BAR // most))
        lines.append(f"{correct:>7}  {bands.names[labels[correct]]:<8} {problems:>6,} {bar}".rstrip())
    return lines


def full_counts(measured: Measured) -> list[int]:
    """Problems by how many of their k first samples are right, those that stopped early left out."""
    full = measured.first.filter(pl.col("unscored").is_null() & (pl.col("n") == measured.k))
    found = dict(full.group_by("correct").len().iter_rows())
    return [found.get(correct, 0) for correct in range(measured.k + 1)]


def band_rows(measured: Measured) -> list[dict[str, Any]]:
    """The bands, and the unscored problems, as rows of a table."""
    k, spans = measured.k, {band.name: f"{band.low:g}-{band.high:g}" for band in measured.bands_rule.bands}
    rows = [
        {
            "band": row["band"],
            "rates": spans.get(row["band"], ""),
            "problems": row["problems"],
            "share": percent(row["share"]),
            "95% interval": span(row["low"], row["high"], percent),
            f"mean avg@{k}": rate(row["mean_avg"]),
        }
        for row in measured.bands.to_dicts()
    ]
    for reason, count in measured.unscored.items():
        rows.append(dict.fromkeys(rows[0], "") | {"band": f"unscored: {reason}", "problems": count})
    return rows


def pass_rows(measured: Measured) -> list[dict[str, Any]]:
    """pass@j and worst@j as rows of a table; avg@k is pass@1."""
    return [
        {
            "samples": row["j"],
            "pass@ (one right)": rate(row["pass"]),
            "95% interval": span(row["low"], row["high"], rate),
            "worst@ (all right)": rate(row["worst"]),
        }
        for row in measured.passes()
    ]


def remarks(measured: Measured) -> list[str]:
    """What a reader should know beside the tables, a sentence or two a line."""
    identity, k = measured.identity, measured.k
    lines = []
    if (mean := measured.mean) is not None:
        few = measured.certain_samples
        what = f"avg@{k}" if few == k else f"pass rate (the first {few} samples, which every problem has)"
        lines.append(f"mean {what} {rate(mean[0])}, 95% interval {span(mean[1], mean[2], rate)}")
    stopped = measured.stopped()
    if identity["early_stop"] != "none":
        differ = stopped.get("may_differ", 0.0)
        lines.append(
            f"early stopping ({identity['early_stop']}): {stopped['not_drawn']:,} rollouts not drawn "
            f"({percent(stopped['share'])}), {percent(differ, 2)} of the labels may differ from those of {k} samples"
        )
    if (quality := measured.quality()) is not None:
        lines.append(
            f"labels of {k} samples: {percent(quality.mislabelled)} are expected not to be those of the true rate; "
            f"measured again, {percent(quality.agreement)} would keep theirs"
        )
    if refined := int(measured.problems["refined"].sum()):
        lines.append(f"{refined:,} borderline problems have more samples; their band is that of all of them")
    lines += [
        f"fresh rollouts of {row['band']} ({row['problems']:,} problems): mean {rate(row['fresh'])} "
        f"{span(row['low'], row['high'], rate)}, where the samples that chose them had {rate(row['selected_on'])}; "
        f"{percent(row['same_label'])} keep their label"
        for row in measured.fresh()
    ]
    if measured.rescored is None:
        lines.append(
            "the samples that chose the splits are no baseline for them (they flatter easy and slight hard problems): "
            "--rescore draws fresh ones"
        )
    lines += carried_lines(measured)
    lines.append(f"verifier {identity['extractor']}, model {identity['model']}")
    return lines


def carried_lines(measured: Measured) -> list[str]:
    """How far other people's pass rates agree with ours."""
    return [
        f"{row['name']}: rank correlation {row['correlation']:.2f} {span(row['low'], row['high'], '{:.2f}'.format)} "
        f"over {row['problems']:,} problems"
        for row in measured.carried_agreement()
    ]


def books_line(measured: Measured) -> str:
    """Rollouts planned = by verdict + not drawn, summed over all purposes."""
    counts = measured.verdicts
    told = " + ".join(f"{name} {counts[name]:,}" for name in (*COUNTED, *FAILED) if counts.get(name))
    books = measured.books
    rest = {"skipped": sum(books.skipped.values()), "not drawn": sum(books.outside.values())}
    told = " + ".join(filter(None, [told, *(f"{name} {count:,}" for name, count in rest.items() if count)]))
    return f"rollouts planned {books.planned:,} = {told or 0}"


def rate(value: float | None) -> str:
    """A pass rate for people."""
    return "" if value is None else f"{value:.3f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share for people."""
    return "" if value is None else f"{100 * value:.{digits}f}%"


def span(low: float | None, high: float | None, form) -> str:
    """An interval for people; empty when it isn't known."""
    return "" if low is None or math.isnan(low) else f"[{form(low)}, {form(high)}]"

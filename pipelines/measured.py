"""What was measured, in numbers: bands, pass rates with intervals, how far the labels can be trusted, what was saved.

measured = read_measured("out")
measured.bands        # a Polars frame: label, problems, share with interval, mean avg@k
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtrit

from derivedata.errors import UserError
from derivedata.pipelines.scored import COUNTED, FAILED, REFINE, RESCORE, ROLLOUT_STAGE, SAMPLE, TABLES, UNSCORED
from derivedata.problems.bands import Bands, parse_bands
from derivedata.problems.early_stopping import borderline, parse_confidence, stopping_rule
from derivedata.problems.passrate import (
    BetaMixture,
    LabelQuality,
    fit_prior,
    jeffreys_interval,
    label_quality,
    pass_at_k,
    worst_at_k,
)
from derivedata.store.books import Books
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder, Missing
from derivedata.store.runs import current_run

PILOT = "plan/pilot.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pilot:
    """A random sample of the problems, measured in full, and the prior of the pass rates that fits it."""

    uids: tuple[str, ...]
    prior: BetaMixture


def read_pilot(folder: Folder) -> Pilot | None:
    """The pilot that an output was begun with; None before it is measured."""
    try:
        told = json.loads(folder.read(PILOT))
    except Missing:
        return None
    return Pilot(uids=tuple(told["uids"]), prior=BetaMixture(**{k: tuple(v) for k, v in told["prior"].items()}))


def measure_pilot(folder: Folder, uids: Sequence[str]) -> Pilot:
    """Fit the prior to the pilot, whose problems are committed; whoever does it first settles it."""
    counts = Manifest(folder).frame(TABLES[SAMPLE]).filter(pl.col("uid").is_in(list(uids)) & (pl.col("n") > 0))
    if not counts.height:
        raise UserError("no problem of the pilot has a sample", where=folder.url, remedy="use --early-stop none")
    counts = counts.sort("uid")
    prior = fit_prior(counts["correct"].to_numpy(), counts["n"].to_numpy())
    folder.create(PILOT, json.dumps({"uids": list(uids), "prior": prior.to_dict()}).encode())
    return read_pilot(folder)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The state of an output.

    problems: a row a problem, further samples of borderline ones merged in. first: as the first samples had it.
    identity: of the run (model, sampling, bands, extractor). rescored: fresh samples, or None. pilot: None where
    nothing stops by probability.
    """

    problems: pl.DataFrame
    first: pl.DataFrame
    rescored: pl.DataFrame | None
    identity: Mapping[str, Any]
    pilot: Pilot | None
    books: Books
    rollouts: pl.DataFrame  # purpose, verdict, truncated, completion_tokens
    carried: pl.DataFrame  # uid, name, rate: what other people measured

    @property
    def verdicts(self) -> dict[str, int]:
        """Rollouts by verdict."""
        return dict(self.rollouts.group_by("verdict").len().iter_rows())

    def carried_agreement(self) -> list[dict[str, Any]]:
        """Spearman's rank correlation of carried rates with ours, with a 95% interval by Fisher's transformation."""
        from scipy.stats import spearmanr

        rows = []
        for (name,), its in self.carried.group_by("name", maintain_order=True):
            both = its.drop_nulls("rate").join(self.scored.select("uid", "avg_at_k"), on="uid")
            if both.height < 4 or both["rate"].n_unique() < 2 or both["avg_at_k"].n_unique() < 2:
                continue
            found = float(spearmanr(both["rate"], both["avg_at_k"]).statistic)
            centre, error = np.arctanh(np.clip(found, -0.9999, 0.9999)), 1.96 * (1.06 / (both.height - 3)) ** 0.5
            low, high = np.tanh([centre - error, centre + error])
            rows.append(
                {"name": name, "problems": both.height, "correlation": found, "low": float(low), "high": float(high)}
            )
        return rows

    @property
    def bands_rule(self) -> Bands:
        return parse_bands(self.identity["bands"])

    @property
    def k(self) -> int:
        return self.identity["samples"]

    @property
    def scored(self) -> pl.DataFrame:
        return self.problems.filter(pl.col("band") != UNSCORED)

    @property
    def bands(self) -> pl.DataFrame:
        """label, problems, share of the scored ones with its 95% interval, mean avg@k."""
        total = self.scored.height
        rows = []
        for label in self.bands_rule.names:
            its = self.scored.filter(pl.col("band") == label)
            low, high = jeffreys_interval(its.height, total) if total else (None, None)
            rows.append(
                {
                    "band": label,
                    "problems": its.height,
                    "share": its.height / total if total else None,
                    "low": None if low is None else float(low),
                    "high": None if high is None else float(high),
                    "mean_avg": its["avg_at_k"].mean(),
                }
            )
        return pl.DataFrame(rows)

    @property
    def unscored(self) -> dict[str, int]:
        """Problems without a rate, by reason."""
        counts = self.problems.filter(pl.col("band") == UNSCORED).group_by("unscored").len().sort("unscored")
        return dict(counts.iter_rows())

    @property
    def mean(self) -> tuple[float, float, float] | None:
        """Mean of `rates` over problems and its 95% interval, from their spread; None without any."""
        return _mean_interval(self.rates["rate"].to_numpy())

    @property
    def certain_samples(self) -> int:
        """How many samples every problem gets, however soon it stops: k without early stopping."""
        confidence = parse_confidence(self.identity["early_stop"])
        if confidence is None or (confidence < 1 and self.pilot is None):
            return self.k
        prior = self.pilot.prior if self.pilot else None
        return stopping_rule(self.bands_rule, self.k, confidence, prior).may_need(0, 0)

    @property
    def rates(self) -> pl.DataFrame:
        """uid, data_source and the share right of the first `certain_samples` of each scored problem.

        Rates of problems that stopped early, or got more samples, because of what came out are no sample of the set's:
        one that stops after six wrong answers would have had some right.
        """
        scored = self.first.filter(pl.col("unscored").is_null())
        if self.certain_samples == self.k:
            return scored.select("uid", "data_source", rate="avg_at_k")
        drawn = self.rollouts.filter(
            (pl.col("purpose") == SAMPLE)
            & (pl.col("sample") < self.certain_samples)
            & pl.col("verdict").is_in(list(COUNTED))
        )
        rates = drawn.group_by("uid").agg(rate=(pl.col("verdict") == "correct").mean())
        return scored.select("uid", "data_source").join(rates, on="uid", how="inner", maintain_order="left")

    def passes(self) -> list[dict[str, float]]:
        """pass@j (at least one of j right) and worst@j (all right), unbiased, for j = 1, 2, 4 ... k, with intervals.

        Over the problems that were sampled in full whatever came out: none where all could stop early.
        """
        full = self.first.filter((pl.col("n") == pl.col("k")) & pl.col("unscored").is_null())
        if parse_confidence(self.identity["early_stop"]) is not None:
            full = full.filter(pl.col("uid").is_in(list(self.pilot.uids if self.pilot else ())))
        if not full.height:
            return []
        correct, n = full["correct"].to_numpy(), full["n"].to_numpy()
        sizes = sorted({min(1 << power, self.k) for power in range(self.k.bit_length() + 1)})
        rows = []
        for size in sizes:
            passing, failing = pass_at_k(correct, n, size), worst_at_k(correct, n, size)
            mean, low, high = _mean_interval(passing)
            rows.append({"j": size, "pass": mean, "low": low, "high": high, "worst": float(failing.mean())})
        return rows

    @property
    def prior(self) -> BetaMixture | None:
        """The distribution of true rates that fits all counts; when sampling stopped doesn't matter to a likelihood."""
        scored = self.first.filter(pl.col("unscored").is_null())
        if not scored.height:
            return None
        return fit_prior(scored["correct"].to_numpy(), scored["n"].to_numpy())

    def quality(self) -> LabelQuality | None:
        """What labels from k samples are worth, as the prior has it."""
        prior = self.prior
        return None if prior is None else label_quality(prior, self.bands_rule, self.k)

    def stopped(self) -> dict[str, float]:
        """Rollouts that were not drawn, their share, and the share of labels that all k samples may have changed."""
        scored = self.first.filter(pl.col("unscored").is_null())
        early = scored.filter(pl.col("stopped_early"))
        left = int((early["k"] - early["n"]).sum())
        planned = int(scored["k"].sum())
        found = {"not_drawn": left, "share": left / planned if planned else 0.0, "problems": early.height}
        prior = self.pilot.prior if self.pilot else self.prior
        if prior is not None and early.height:
            found["may_differ"] = self._may_differ(early, prior) / scored.height
        return found

    def _may_differ(self, early: pl.DataFrame, prior: BetaMixture) -> float:
        bands, final = self.bands_rule, self.bands_rule.labels_of_counts(self.k)
        total = 0.0
        for (correct, n, band), count in early.group_by("correct", "n", "band").len().rows_by_key(
            ["correct", "n", "band"], unique=True
        ).items():  # fmt: skip
            chances = prior.predictive(np.array(correct), np.array(n), self.k - n)
            same = final[correct : correct + self.k - n + 1] == bands.names.index(band)
            total += (1 - chances[same].sum()) * (count if isinstance(count, int) else count[0])
        return total

    def borderline(self) -> list[str]:
        """uids of the problems whose label has less than 90% of the posterior, in the order of the table."""
        prior, scored = self.prior, self.first.filter(pl.col("unscored").is_null() & (pl.col("n") > 0))
        if prior is None:
            return []
        unsure = borderline(scored["correct"].to_numpy(), scored["n"].to_numpy(), self.bands_rule, prior)
        return scored.filter(pl.Series(unsure))["uid"].to_list()

    def by_source(self) -> list[dict[str, Any]]:
        """Mean of `rates` of each data source with its 95% interval."""
        rows = []
        for (source,), its in self.rates.group_by("data_source", maintain_order=True):
            mean, low, high = _mean_interval(its["rate"].to_numpy())
            rows.append({"data_source": source, "problems": its.height, "mean": mean, "low": low, "high": high})
        return sorted(rows, key=lambda row: -row["problems"])

    def fresh(self) -> list[dict[str, Any]]:
        """By band: mean avg@k of the samples that chose it, of fresh ones, and the share that keeps its label."""
        if self.rescored is None:
            return []
        fresh = self.rescored.select("uid", fresh="avg_at_k", fresh_band="band").filter(
            pl.col("fresh_band") != UNSCORED
        )
        joined = self.scored.join(fresh, on="uid")
        rows = []
        for label in self.bands_rule.names:
            its = joined.filter(pl.col("band") == label)
            if its.height:
                mean, low, high = _mean_interval(its["fresh"].to_numpy())
                rows.append(
                    {
                        "band": label,
                        "problems": its.height,
                        "selected_on": its["avg_at_k"].mean(),
                        "fresh": mean,
                        "low": low,
                        "high": high,
                        "same_label": float((its["band"] == its["fresh_band"]).mean()),
                    }
                )
        return rows


def read_measured(output: str | Folder) -> Measured:
    """Read what an output holds.

    Raises:
        UserError: nothing is measured there.
    """
    folder = output if isinstance(output, Folder) else Folder(output)
    manifest, record = Manifest(folder), current_run(folder)
    if record is None or record.identity.get("job") != "difficulty":
        raise UserError("no measured problems", where=folder.url, remedy="name the output of `derivedata difficulty`")
    tables = manifest.view().tables
    first = manifest.frame(TABLES[SAMPLE]).sort("path", "row")
    identity = dict(record.identity)
    refined = manifest.frame(TABLES[REFINE]) if TABLES[REFINE] in tables else None
    rescored = manifest.frame(TABLES[RESCORE]) if TABLES[RESCORE] in tables else None
    problems = first.with_columns(refined=pl.lit(False))
    if refined is not None:
        problems = _merge(problems, refined, parse_bands(identity["bands"]))
    return Measured(
        problems=problems,
        first=first,
        rescored=rescored,
        identity=identity,
        pilot=read_pilot(folder),
        books=manifest.books().get(ROLLOUT_STAGE, Books()),
        rollouts=manifest.frame("rollouts", ["uid", "sample", "purpose", "verdict", "truncated", "completion_tokens"]),
        carried=manifest.frame("carried"),
    )


def _merge(first: pl.DataFrame, refined: pl.DataFrame, bands: Bands) -> pl.DataFrame:
    """Add the further samples of borderline problems to their first ones; the band is that of all samples."""
    counts = ["correct", "n", "k", *COUNTED[1:], *FAILED]
    means = ["truncated_share", "mean_tokens"]
    # Raised later, --refine-borderline leaves several rows a problem.
    added = (
        refined.filter(pl.col("n") > 0)
        .group_by("uid")
        .agg(
            *(pl.col(name).sum().alias(f"more_{name}") for name in counts),
            *(((pl.col(name) * pl.col("n")).sum() / pl.col("n").sum()).alias(f"more_{name}") for name in means),
        )
    )
    joined = first.join(added, on="uid", how="left", maintain_order="left")
    here = pl.col("more_n").is_not_null()
    weights = (pl.col("n"), pl.col("more_n"))

    def weighted(name: str) -> pl.Expr:
        return (pl.col(name) * weights[0] + pl.col(f"more_{name}") * weights[1]) / (weights[0] + weights[1])

    joined = joined.with_columns(
        *(
            pl.when(here).then(weighted(name)).otherwise(pl.col(name)).alias(name)
            for name in ("truncated_share", "mean_tokens")
        ),
    ).with_columns(*((pl.col(name) + pl.col(f"more_{name}").fill_null(0)).alias(name) for name in counts), refined=here)
    correct, n, merged = (joined[name].to_numpy() for name in ("correct", "n", "refined"))
    low, high = jeffreys_interval(correct, np.maximum(n, 1))
    labels = np.array(bands.names)[bands.label_index(correct / np.maximum(n, 1))]
    new = pl.DataFrame({"at": correct / np.maximum(n, 1), "lo": low, "hi": high, "label": labels.tolist(), "m": merged})
    joined = joined.hstack(new)
    for name, value in (("avg_at_k", "at"), ("interval_low", "lo"), ("interval_high", "hi"), ("band", "label")):
        joined = joined.with_columns(pl.when(pl.col("m")).then(pl.col(value)).otherwise(pl.col(name)).alias(name))
    return joined.select(first.columns)


def _mean_interval(values: np.ndarray) -> tuple[float, float, float] | None:
    """The mean of independent values in [0, 1] and its 95% interval: a proportion's, for as many yes-or-no answers as
    would have the spread of this mean (Korn and Graubard 1998).

    Mean rates lie near 0 or 1, where a symmetric interval is cut off at one end and too short at the other.
    """
    values = np.asarray(values, float)
    count = len(values)
    if not count:
        return None
    mean, variance = float(values.mean()), float(values.var(ddof=1)) if count > 1 else 0.0
    # All alike: their spread says nothing of what the next problem would be.
    answers = float(count)
    if variance:
        answers *= mean * (1 - mean) / variance * (1.96 / stdtrit(count - 1, 0.975)) ** 2
    low, high = jeffreys_interval(mean * answers, answers)
    return mean, float(low), float(high)

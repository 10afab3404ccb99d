"""The study on real text, one resumable command: `just study DIR`, or `python -m derivedata.trainers.study DIR`.

Repeat against human paraphrase (Bible translations) on models of .044M to .44M parameters: forecast, tuning of the
learning rate, the sweep, fits, tables and figures; `trainers/study.md` says what it asks and how it answers. About
three quarters of an hour on two idle cores. What is finished is not done again.

    python -m derivedata.trainers.study DIR --slice      # two minutes of it, to see that everything is in place
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from derivedata.trainers.ladder import LADDER
from derivedata.trainers.study_text import VERSIONS, read_version, write_corpora
from derivedata.trainers.sweep import SweepOptions, run_sweep

HOLDOUT, EVAL_TOKENS = 0.05, 131_072
SCORED = "bits_per_byte_on_older"
RATES = (0.0025, 0.005, 0.01, 0.02, 0.04)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A run of a design: size, D as tokens per parameter, strategy, x, seed."""

    size: str
    tpp: float
    strategy: str = ""
    x: float = 0.0
    seed: int = 0

    @property
    def fresh(self) -> int:
        return round(self.tpp * LADDER[self.size].nominal)


def _cell(size: str, tpp: float, seeds: Iterable[int], repeat: Iterable[int], paraphrase: Iterable[int], mixed: bool):
    for seed in seeds:
        yield Row(size=size, tpp=tpp, seed=seed)
        for strategy, levels in (
            ("repeat", repeat),
            ("paraphrase", paraphrase),
            ("one-version", (1,) if mixed else ()),
        ):
            for x in levels:
                yield Row(size=size, tpp=tpp, strategy=strategy, x=x, seed=seed)


def tuning() -> list[Row]:
    """A run on fresh tokens and one with repeats a size: three at the smallest, one where runs are dear."""
    return [
        Row(size=size, tpp=tpp, strategy="repeat" if x else "", x=x)
        for size, tpp, levels in ((".044M", 6.3, (0, 3)), (".14M", 6.3, (0, 1)), (".44M", 2.0, (0, 1)))
        for x in levels
    ]


def main_design() -> list[Row]:
    """The runs of the study: three seeds at the smallest size, where the primary result is read."""
    three, one = (0, 1, 2), (0,)
    rows = [
        *_cell(".044M", 2.0, three, (1, 3, 7, 15, 31, 63), (1, 3, 6), True),
        *_cell(".044M", 6.3, three, (1, 3, 7), (1, 3, 6), True),
        *_cell(".044M", 20.0, three, (1, 3, 7), (1, 3, 6), True),
        *_cell(".14M", 2.0, one, (1, 3, 7), (1, 3, 6), True),
        *_cell(".14M", 6.3, one, (1, 3, 7), (1, 3, 6), True),
        *_cell(".14M", 20.0, one, (1,), (1,), False),
        *_cell(".44M", 2.0, one, (1, 3), (1, 3), False),
        # One epoch on as many fresh tokens as the longest of the others are worth.
        *(Row(size=".044M", tpp=tpp, seed=seed) for tpp in (40.0, 80.0) for seed in three),
    ]
    return rows


def a_slice() -> list[Row]:
    """A part that takes two minutes."""
    return list(_cell(".044M", 2.0, (0,), (1, 3), (1, 3), True))


def write_design(path: Path, rows: Iterable[Row], rates: dict[str, float] | None = None) -> Path:
    """A design for `derivedata sweep`, with the learning rate of each size when it is known."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["n_params", "fresh_tokens", "x", "strategy", "seed", *(["lr"] if rates else [])])
        for row in rows:
            cells = [round(LADDER[row.size].nominal), row.fresh, f"{row.x:g}", row.strategy, row.seed]
            writer.writerow([*cells, *([rates[row.size]] if rates else [])])
    return path


def best_rates(grid: Path) -> dict[str, float]:
    """For each size the learning rate with the lowest mean loss over its tuning runs."""
    import polars as pl

    rows = pl.read_parquet(grid).filter(pl.col("loss").is_not_null())
    means = rows.group_by("size", "lr").agg(pl.col("loss").mean(), pl.len().alias("runs")).sort("loss")
    most = means.group_by("size").agg(pl.col("runs").max().alias("most"))
    kept = means.join(most, on="size").filter(pl.col("runs") == pl.col("most")).sort("loss")
    return {row["size"]: row["lr"] for row in kept.sort("loss", descending=True).iter_rows(named=True)}


def run_study(folder: Path, narrator, *, slice: bool = False) -> None:
    """Everything, step by step; each step is skipped when what it leaves is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh, derived = write_corpora(folder / "text", {name: read_version(name) for name in VERSIONS})
    common = {
        "fresh": (str(fresh),),
        "derived": {"paraphrase": str(derived), "one-version": f"{derived / 'documents' / 'asv.jsonl'}"},
        "holdout": HOLDOUT,
        "eval_tokens": EVAL_TOKENS,
    }
    if slice:
        design = write_design(folder / "slice.csv", a_slice(), {".044M": 0.01})
        found = run_sweep(SweepOptions(design=str(design), output=str(folder / "slice"), **common), narrator)
        narrator.say(f"{found['rows']} runs in {found['table']}: everything is in place")
        return
    forecast(folder)
    tune = write_design(folder / "tune.csv", tuning())
    run_sweep(SweepOptions(design=str(tune), output=str(folder / "tune"), lr=RATES, **common), narrator)
    rates = best_rates(folder / "tune" / "grid.parquet")
    narrator.say(f"learning rates: {rates}")
    design = write_design(folder / "design.csv", main_design(), rates)
    # The other translations of the held-out chapters: other text than the loss is of.
    common["scored"] = {"older": str(derived)}
    run_sweep(SweepOptions(design=str(design), output=str(folder / "runs"), **common), narrator)
    answer(folder, rates)
    narrator.say(f"results in {folder / 'results.md'}")


def forecast(folder: Path) -> None:
    """What `eta design` expects of a sweep of these sizes and this budget, before any run."""
    flops = sum(6 * LADDER[row.size].nominal * row.fresh * (1 + row.x) for row in main_design())
    sizes = ",".join(str(round(LADDER[name].nominal)) for name in (".044M", ".14M", ".44M"))
    command(folder / "forecast.txt", "design", "--sizes", sizes, "--budget", f"{flops:.3g}", "--tpp", "2,6.3,20")


def command(path: Path, *words: object) -> str:
    """What an eta command says, kept in a file: an answer or a refusal, both are results."""
    if not path.exists():
        told = subprocess.run(
            [sys.executable, "-m", "derivedata", "eta", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            cwd=path.parent,
        )
        path.write_text(f"$ derivedata eta {' '.join(map(str, words))}\n{told.stdout}{told.stderr}")
    return path.read_text()


def answer(folder: Path, rates: dict[str, float]) -> None:
    """Fits, the table of eta at fixed x, figures, and results.md."""
    from derivedata.trainers.study_tables import eta_table, figures, seed_noise

    runs, fit = folder / "runs" / "runs.parquet", folder / "fit.json"
    table = "runs/runs.parquet"
    told = command(folder / "fit.txt", "fit", table, "--vocab", 257, "-o", "fit.json")
    sections = [("Forecast", (folder / "forecast.txt").read_text()), ("Fit", told)]
    for strategy in ("repeat", "paraphrase"):
        path = folder / f"calibrate-{strategy}.txt"
        told = command(path, "calibrate", table, "--strategy", strategy, "-o", f"calibrated-{strategy}.json")
        sections.append((f"Calibrated against the published law: {strategy}", told))
    told = command(folder / "sufficiency.txt", "sufficiency", table, "--metric", SCORED, "--plots", "figures")
    sections.append(("Is validation loss sufficient?", told))
    lines = ["# Results", "", f"Learning rates: {rates}. {seed_noise(runs)}", "", *eta_table(runs, fit), ""]
    for picture in figures(runs, fit):
        picture.save(folder / "figures")
        lines += [f"![{picture.title}](figures/{picture.name}.png)", "", picture.caption, ""]
    for title, text in sections:
        lines += [f"## {title}", "", "```", text.strip(), "```", ""]
    (folder / "results.md").write_text("\n".join(lines))


if __name__ == "__main__":
    import click

    from derivedata.cli import main
    from derivedata.cli.show import Narrator

    @click.command()
    @click.argument("folder", type=click.Path(path_type=Path))
    @click.option("--slice", is_flag=True, help="Two minutes of it.")
    def study(folder: Path, slice: bool) -> None:
        """Run the study in FOLDER, or go on with it."""
        run_study(folder, Narrator(), slice=slice)

    main(sys.argv[1:], study)

"""The page of the RL study: tables from the logs, with intervals, and a figure of the validation curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from derivedata.problems.passrate import jeffreys_interval
from derivedata.trainers.rl_study_model import RIGHT_SHARE

PAGE = "rl-study.md"
_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)


def write_page(output: Path, counts: dict[str, Any], runs: Sequence[str], plan: str, *, lr_at_1024: float) -> Path:
    """Write OUT/rl-study.md and OUT/rl-study.svg; the page's path."""
    page = output / PAGE
    logs = {name: _logs(output / "runs" / name) for name in runs}
    _figure(output / "rl-study.svg", logs)
    k = len(counts["right"]) - 1
    parts = [
        "# A small RL study, measured",
        "",
        f"A Llama of {counts['parameters']:,} parameters (without the input embedding) over characters was taught "
        f"{counts['taught']:,} sums and differences with answers in four ways, each with its letter: right in "
        f"{RIGHT_SHARE['+']:.0%} and {RIGHT_SHARE['-']:.0%}, else off by 1, -1 or 10 (last loss {counts['loss']:.3f} "
        f"nats a token). What RL can bring out is the choice among the ways. "
        f"Of {counts['problems']:,} others it solved, of {k} samples at temperature 0.6:",
        "",
        "| right of 16 | " + " | ".join(str(i) for i in range(k + 1)) + " |",
        "| --- |" + " ---: |" * (k + 1),
        "| sums | " + " | ".join(f"{n:,}" for n in counts["right"]) + " |",
        "",
        "Splits: " + ", ".join(f"{name} {n:,}" for name, n in counts["splits"].items()) + ".",
        f"Learning rate {lr_at_1024:g} at B = 1,024, times sqrt(B/1024).",
        "",
        "## Runs",
        "",
        "avg, best and worst at 4 on the held-out problems of the run's own band, at C = 0 and at the end. The "
        "interval of avg@4 is Jeffreys' at 95% with one observation a problem, the widest that its four samples allow.",
        "",
        "| run | M | C | avg@4 at 0 | avg@4 at C | best@4 | worst@4 | entropy | KL | fell to 0 |",
        "| --- | ---: | ---: | --- | --- | --- | --- | --- | ---: | ---: |",
        *[_row(name, log) for name, log in logs.items()],
        "",
        "Entropy: nats a token, first and last tenth of the steps. KL: last tenth, from the model that training "
        "started with (not measured without a KL term). Fell to 0: of the problems that were solved at all in their "
        "first group, the share with no right answer in their last.",
        "",
        "![validation curves](rl-study.svg)",
        "",
        "## Pass rates during training",
        "",
        "Share of the problem groups by pass rate, in the first and the last quarter of the steps.",
        "",
        "| run | quarter | 0 | to .25 | to .5 | to .75 | below 1 | 1 |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *[line for name, log in logs.items() for line in _histograms(name, log)],
        "",
        "## What the planner says of the easy runs",
        "",
        "```",
        plan.rstrip(),
        "```",
        "",
    ]
    page.write_text("\n".join(parts))
    return page


def _logs(run: Path) -> dict[str, list[dict]]:
    return {
        name: [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]
        for name in ("steps", "problems", "evaluations")
    }


def _row(name: str, log: dict[str, list[dict]]) -> str:
    first, last, steps = log["evaluations"][0], log["evaluations"][-1], log["steps"]

    def with_interval(row: dict) -> str:
        low, high = (float(end) for end in jeffreys_interval(row["avg"] * row["problems"], row["problems"]))
        return f"{row['avg']:.3f} [{low:.3f}, {high:.3f}]"

    def both(what: str) -> str:
        return f"{first[what]:.3f} -> {last[what]:.3f}"

    tenth = max(1, len(steps) // 10)
    entropies = [np.mean([s["entropy"] for s in part]) for part in (steps[:tenth], steps[-tenth:])]
    kls = [s["kl"] for s in steps[-tenth:] if s["kl"] is not None]
    kl = f"{np.mean(kls):.4f}" if kls else ""
    fell = fell_to_zero(log["problems"])
    return (
        f"| {name} | {steps[-1]['step']:,} | {steps[-1]['rollouts']:,} "
        f"| {with_interval(first)} | {with_interval(last)} "
        f"| {both('best')} | {both('worst')} | {entropies[0]:.3f} -> {entropies[1]:.3f} | {kl} "
        f"| {'' if fell is None else f'{fell:.1%}'} |"
    )


def fell_to_zero(problems: Sequence[dict]) -> float | None:
    """Of the problems drawn twice and solved at first, the share that nobody solved at last; None: there are none."""
    seen: dict[str, list[int]] = {}
    for row in problems:
        seen.setdefault(row["problem"], []).append(row["k"])
    solved = [ks for ks in seen.values() if len(ks) > 1 and ks[0] > 0]
    return float(np.mean([ks[-1] == 0 for ks in solved])) if solved else None


def _histograms(name: str, log: dict[str, list[dict]]) -> list[str]:
    steps = log["steps"][-1]["step"]
    lines = []
    for title, low, high in (("first", 0, steps / 4), ("last", 3 * steps / 4, steps)):
        rates = np.array([r["k"] / r["n"] for r in log["problems"] if low < r["step"] <= high])
        edges = [*_BINS[1:-1]]
        shares = [np.mean(rates == 0)]
        shares += [np.mean((rates > a) & (rates <= b)) for a, b in zip([0, *edges], edges, strict=False)]
        shares += [np.mean((rates > edges[-1]) & (rates < 1)), np.mean(rates == 1)]
        lines.append(f"| {name} | {title} | " + " | ".join(f"{share:.2f}" for share in shares) + " |")
    return lines


def _figure(path: Path, logs: dict[str, dict[str, list[dict]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    recipes = sorted({name.split("-")[0] for name in logs})
    figure, axes = pyplot.subplots(1, len(recipes), figsize=(5 * len(recipes), 3.6), squeeze=False)
    for axis, recipe in zip(axes[0], recipes, strict=True):
        for name, log in logs.items():
            if name.startswith(recipe):
                rows = log["evaluations"]
                axis.plot([r["rollouts"] for r in rows], [r["avg"] for r in rows], marker="o", label=name.split("-")[1])
        axis.set(title=recipe, xlabel="C (rollouts)", ylabel="validation avg@4")
        axis.legend(title="B_p x n", fontsize=7)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)

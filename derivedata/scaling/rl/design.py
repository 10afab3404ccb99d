"""A grid of (B_p, n) that a planner can read an optimum from, for a budget of rollouts.

Every run gets the same C (iso-compute): one line of n at a fixed B_p, which shows n*(C), and one of (B_p, n) at a fixed
B, which shows how to split a batch. n doubles from the smallest to the largest that still leaves enough iterations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from derivedata.errors import UserError

FEWEST_N = 4
ITERATIONS = 40
SMALLEST_N = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class GridRun:
    """One run: M = C / (B_p n) iterations; `line` says which comparison it belongs to."""

    problems_per_batch: int
    rollouts_per_problem: int
    iterations: int
    rollouts: int
    seed: int
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GridDesign:
    """The runs, what they cost together, the C of each, and what to know."""

    runs: tuple[GridRun, ...]
    rollouts: int
    each: float
    notes: tuple[str, ...]


def design(
    budget: float,
    *,
    problems: int | None = None,
    least_n: int = SMALLEST_N,
    most_n: int = 512,
    problems_per_batch: int = 32,
    iterations: int = ITERATIONS,
    seeds: int = 1,
) -> GridDesign:
    """The widest grid of a budget.

    Args:
        budget: rollouts for all runs.
        problems: size of the training set; B_p is not above it.
        least_n, most_n: range of n (powers of two between are used).
        problems_per_batch: B_p of the line of n.
        iterations: that a run has at least.
        seeds: repeats of every run.

    Raises:
        UserError: the budget does not pay for four values of n.
    """
    if not 2 <= least_n <= most_n:
        raise UserError("n runs from 2 up", value=f"{least_n} to {most_n}")
    if problems is not None:
        problems_per_batch = min(problems_per_batch, problems)
    ns = [2**i for i in range(int(np.ceil(np.log2(least_n))), int(np.log2(most_n)) + 1)]
    found = None
    for count in range(FEWEST_N, len(ns) + 1):
        lines = _lines(ns[:count], problems_per_batch, problems)
        each = budget / (len(lines) * seeds)
        if all(each / (n * b) >= iterations for b, n, _ in lines):
            found = lines, each
    if found is None:
        fewest = _lines(ns[:FEWEST_N], problems_per_batch, problems)
        need = max(n * b for b, n, _ in fewest) * iterations * len(fewest) * seeds
        if len(ns) < FEWEST_N:
            raise UserError(
                f"a curve n*(C) needs {FEWEST_N} values of n", value=", ".join(map(str, ns)), remedy="raise --most-n"
            )
        raise UserError(
            f"{budget:.3g} rollouts do not pay for {FEWEST_N} values of n with {iterations} iterations each",
            remedy=f"{need:.3g} would, or lower --problems-per-batch, --iterations or --least-n",
        )
    lines, each = found
    runs = tuple(
        GridRun(
            problems_per_batch=b,
            rollouts_per_problem=n,
            iterations=int(each // (n * b)),
            rollouts=int(each // (n * b)) * n * b,
            seed=seed,
            line=line,
        )
        for b, n, line in lines
        for seed in range(seeds)
    )
    largest = max(n for _, n, _ in lines)
    notes = [f"n* is looked for between {ns[0]} and {largest}: an optimum at either end will be flagged, not trusted"]
    if largest < ns[-1]:
        notes.append(f"n of {largest * 2} would leave fewer than {iterations} iterations a run")
    if problems is not None:
        most = max(run.iterations * run.problems_per_batch / problems for run in runs)
        notes.append(f"the smallest n makes {most:.3g} passes over the {problems} problems")
    return GridDesign(runs=runs, rollouts=sum(run.rollouts for run in runs), each=each, notes=tuple(notes))


def _lines(ns: list[int], problems_per_batch: int, problems: int | None) -> list[tuple[int, int, str]]:
    """(B_p, n, line), each pair once."""
    at_problems = f"n at B_p = {problems_per_batch}"
    lines = {(problems_per_batch, n): at_problems for n in ns}
    # The fixed batch is that of the middle of the line, so that the two lines cross.
    batch = problems_per_batch * ns[len(ns) // 2]
    for n in ns:
        b = batch // n
        if b >= 4 and (problems is None or b <= problems):
            lines.setdefault((b, n), f"B_p and n at B = {batch}")
    return [(b, n, line) for (b, n), line in lines.items()]

"""The budget of a run: C = B_p * n * M rollouts (problems a batch, rollouts a problem, iterations).

Any two of the three and C give the third; all three give C.

    resolve_budget(problems=48, rollouts=16, budget=76_800).iterations == 100
"""

from __future__ import annotations

from dataclasses import dataclass

from derivedata.errors import UserError

_OPTIONS = {"problems": "--problems-per-batch", "rollouts": "--rollouts", "iterations": "--iterations"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutBudget:
    """The shape of a run, in the IsoCompute Playbook's letters (arXiv 2603.12151)."""

    problems: int  # B_p: problems of a batch
    rollouts: int  # n: rollouts of a problem
    iterations: int  # M: optimizer steps

    def __post_init__(self):
        for name, option in _OPTIONS.items():
            if getattr(self, name) < 1:
                raise UserError(f"{option} must be at least 1", value=getattr(self, name))
        if self.rollouts < 2:
            raise UserError(
                "a group of one rollout has no baseline", where="--rollouts", value=1, remedy="take 2 or more"
            )

    @property
    def batch(self) -> int:
        """B: rollouts of an optimizer step."""
        return self.problems * self.rollouts

    @property
    def total(self) -> int:
        """C: rollouts of the run."""
        return self.batch * self.iterations


def resolve_budget(
    *,
    problems: int | None = None,
    rollouts: int | None = None,
    iterations: int | None = None,
    budget: int | None = None,
    step: int = 1,
) -> RolloutBudget:
    """The budget that the given numbers mean.

    Args:
        problems: B_p.
        rollouts: n.
        iterations: M.
        budget: C in rollouts; may be left out where the other three are given.
        step: M must be a multiple of it (the optimizer steps that share one round of generation).

    Raises:
        UserError: too few numbers, or numbers that don't fit; it names the nearest budgets that do.
    """
    given = {"problems": problems, "rollouts": rollouts, "iterations": iterations}
    known = {name: value for name, value in given.items() if value is not None}
    if budget is not None and budget < 1:
        raise UserError("--budget must be at least 1 rollout", value=budget)
    if len(known) + (budget is not None) < 3:
        raise UserError(
            "the budget is not determined",
            value=", ".join(_OPTIONS[name] for name in known) or "none of its numbers",
            remedy=f"give {', '.join(_OPTIONS.values())}, or any two of them and --budget",
        )
    if len(known) < 3:
        return _solved(known, budget, step)
    found = RolloutBudget(**known)
    if found.iterations % step:
        below, above = _around(found.iterations, step)
        raise UserError(
            f"one round of generation serves {step} optimizer steps, so --iterations must be a multiple of it",
            value=found.iterations,
            remedy=f"take --iterations {' or '.join(str(m) for m in (below, above) if m)}, or another --staleness",
        )
    if budget is not None and found.total != budget:
        raise UserError(
            f"{found.problems} problems x {found.rollouts} rollouts x {found.iterations} iterations are "
            f"{found.total:,} rollouts, not the budget",
            value=f"{budget:,}",
            remedy="leave one of the four out",
        )
    return found


def _solved(known: dict[str, int], budget: int, step: int) -> RolloutBudget:
    """The one number that is missing, or a line with the nearest budgets for which it is a whole number."""
    for name, value in known.items():
        if value < 1:
            raise UserError(f"{_OPTIONS[name]} must be at least 1", value=value)
    missing = next(name for name in _OPTIONS if name not in known)
    if missing != "iterations" and known["iterations"] % step:
        # The multiple of the rounds is wrong whatever the third number is.
        return resolve_budget(**known, **{missing: 2}, step=step)
    unit = 1
    for value in known.values():
        unit *= value
    multiple = step if missing == "iterations" else 1
    least = {"problems": 1, "rollouts": 2, "iterations": step}[missing]
    if budget % (unit * multiple) == 0 and budget // unit >= least:
        return RolloutBudget(**known, **{missing: budget // unit})
    below, above = _around(budget // unit, multiple, exact=budget % unit == 0)
    nearest = sorted({max(count, least) for count in (below, above)})
    fits = " or ".join(f"--budget {count * unit} ({_OPTIONS[missing]} {count})" for count in nearest)
    shape = " x ".join(f"{_OPTIONS[name]} {value}" for name, value in known.items())
    raise UserError(f"no {_OPTIONS[missing]} makes {shape} fit the budget", value=budget, remedy=f"the nearest: {fits}")


def _around(count: int, multiple: int, *, exact: bool = True) -> tuple[int, int]:
    """The multiples just below and above a count (the count itself is no solution)."""
    below = count // multiple * multiple
    return (
        (below - multiple, below + multiple)
        if exact and below == count and multiple == 1
        else (
            below,
            below + multiple,
        )
    )

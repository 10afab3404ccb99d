"""The RL study: a small model, its easy and hard sums, a grid of (B_p, n) runs, and what the planner says of them.

    python -m derivedata.trainers.rl_study OUT            ten minutes on an idle core; started again it goes on
    python -m derivedata.trainers.rl_study OUT --small    the same in small, two minutes

OUT holds model/, splits/, runs/ and study.json; the page is written to OUT/rl-study.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from derivedata.trainers.rl import train_rl
from derivedata.trainers.rl_options import RLOptions
from derivedata.trainers.rl_study_model import MAX_TOKENS, measure, split, sums, warm_up, write_model, write_splits
from derivedata.trainers.rl_study_page import write_page

K = 16  # samples of a problem that choose its band


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The size of a study."""

    problems: int = 2_400  # of which the bands are cut
    taught: int = 12_000  # sums of the warm-up, those of the problems taken out
    warm_up: int = 2_000  # steps of it
    width: int = 64
    layers: int = 2
    validation: int = 200  # problems held out of each band
    budget: int = 3_072  # C of each run
    evaluations: int = 6  # of each run, beside the one at C = 0
    # (B_p, n): a line of n at one B_p, and one of B_p at one n.
    easy: Sequence[tuple[int, int]] = field(default=((16, 8), (16, 4), (16, 16), (16, 2), (8, 8), (32, 8)))
    hard: Sequence[tuple[int, int]] = field(default=((16, 8),))
    lr_at_1024: float = 6e-4


SMALL = Scale(
    problems=400,
    warm_up=1_500,
    validation=16,
    budget=128,
    easy=((4, 4), (8, 4)),
    hard=((4, 4),),
)


def run_study(output: Path, scale: Scale, tell: Callable[[str], None]) -> Path:
    """Do what is not done yet, and write the page; its path."""
    output.mkdir(parents=True, exist_ok=True)
    counts = _splits(output, scale, tell)
    runs = []
    for recipe, grid in (("easy", scale.easy), ("hard", scale.hard)):
        for problems, n in grid:
            name = f"{recipe}-{problems}x{n}"
            tell(f"run {name}")
            train_rl(
                RLOptions(
                    problems=(str(output / "splits" / f"{recipe}.parquet"),),
                    model=str(output / "model"),
                    output=str(output / "runs" / name),
                    recipe=recipe,
                    problems_per_batch=problems,
                    rollouts=n,
                    budget=scale.budget,
                    lr_at_1024=scale.lr_at_1024,
                    max_tokens=MAX_TOKENS,
                    eval_every=max(1, scale.budget // (problems * n * scale.evaluations)),
                    cpu=True,
                ),
                tell=tell,
            )
            runs.append(name)
    plan = _plan([output / "runs" / name for name in runs if name.startswith("easy")], scale.budget)
    return write_page(output, counts, runs, plan, lr_at_1024=scale.lr_at_1024)


def _splits(output: Path, scale: Scale, tell: Callable[[str], None]) -> dict[str, Any]:
    """The warmed-up model and the splits; made once."""
    done = output / "study.json"
    if done.exists():
        return json.loads(done.read_text())
    model = output / "model"
    own = sums(scale.problems, seed=0)
    questions = {problem.question for problem in own}
    taught = [problem for problem in sums(scale.taught, seed=1) if problem.question not in questions]
    tell(f"warm-up on {len(taught):,} other sums")
    write_model(model, width=scale.width, layers=scale.layers)
    loss = warm_up(model, taught, steps=scale.warm_up)
    tell(f"avg@{K} of {len(own):,} sums")
    right = measure(model, own, k=K)
    splits = split(own, right, k=K, validation=scale.validation)
    write_splits(output / "splits", splits)
    counts = {
        "parameters": _parameters(model),
        "loss": loss,
        "taught": len(taught),
        "problems": len(own),
        "right": np.bincount(right, minlength=K + 1).tolist(),
        "splits": {name: len(problems) for name, problems in splits.items()},
    }
    temporary = done.with_suffix(".tmp")
    temporary.write_text(json.dumps(counts, indent=1))
    temporary.rename(done)
    return counts


def _parameters(model: Path) -> int:
    """All parameters except the input embedding."""
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(model)
    return sum(p.numel() for p in whole.parameters()) - whole.get_input_embeddings().weight.numel()


def _plan(runs: list[Path], budget: int) -> str:
    """What `derivedata rl plan` prints for the runs."""
    command = [sys.executable, "-m", "derivedata", "rl", "plan", *map(str, runs), "--budget", str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else done.stderr


def _main(arguments: list[str]) -> None:
    small = "--small" in arguments
    places = [argument for argument in arguments if not argument.startswith("-")]
    if len(places) != 1:
        sys.exit(__doc__)
    print("written to", run_study(Path(places[0]), SMALL if small else Scale(), lambda text: print(text, flush=True)))


if __name__ == "__main__":
    _main(sys.argv[1:])

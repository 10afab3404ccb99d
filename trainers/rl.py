"""Train a model on problems by reinforcement learning, with the logs that the planner reads.

    derivedata train rl --problems OUT/splits/easy.parquet --model MODEL --recipe easy \
        --problems-per-batch 16 --rollouts 8 --iterations 100 -o RUN

TRL's GRPOTrainer does the work (extra `rl`): with vLLM on a GPU, with transformers' generation on a CPU. RUN holds
run.json, steps.jsonl, problems.jsonl, evaluations.jsonl, checkpoints/ and, at the end, model/. Started again after a
kill it goes on from the last whole checkpoint.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.problems.read import read_all
from derivedata.store.fingerprint import RunConfig, refuse
from derivedata.store.paths import Folder, Missing
from derivedata.store.runs import CURRENT, PACKAGES, new_run, utc_now, versions
from derivedata.trainers.rl_budget import RolloutBudget
from derivedata.trainers.rl_checks import check_reporter
from derivedata.trainers.rl_options import RLOptions, micro_batch, training_rows, validation_rows
from derivedata.trainers.rl_recipes import Recipe

TRL = (1, 16)
ROOMS, LOGS = ("checkpoints", "model"), ("steps.jsonl", "problems.jsonl", "evaluations.jsonl")
# A run may be made longer, and looked at more or less often; everything else is another run.
_MAY_CHANGE = ("iterations", "budget", "eval_every", "save_every", "validation_problems", "micro_batch", "report_to")


@dataclass(frozen=True, kw_only=True, slots=True)
class RLRun:
    """What a run did."""

    output: str
    budget: RolloutBudget
    learning_rate: float
    resumed_at: int  # optimizer step that it went on from; 0: the start
    lost_steps: int  # optimizer steps behind that checkpoint, which the kill had made void
    retired: int  # prompts that were no longer drawn at the end
    stopped: str | None  # why it ended before its last iteration
    evaluations: tuple[dict[str, Any], ...]  # the lines of evaluations.jsonl


def require_trl() -> None:
    """Check the optional package.

    Raises:
        UserError: TRL is missing, or of another minor version than the hooks were written for.
    """
    # Which versions of vLLM TRL knows is told many times over; vLLM itself says what it can't do.
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")
    try:
        trl = importlib.import_module("trl")
    except ImportError:
        raise UserError("the RL trainer needs TRL", remedy="install it with pip install 'derivedata[rl]'") from None
    if tuple(int(part) for part in trl.__version__.split(".")[:2]) != TRL:
        raise UserError(
            f"the RL trainer is written for TRL {TRL[0]}.{TRL[1]}",
            value=trl.__version__,
            remedy="install it with pip install 'derivedata[rl]'",
        )


def train_rl(
    options: RLOptions,
    *,
    restart: bool = False,
    reward: Callable[..., list[float]] | None = None,
    tell: Callable[[str], None] | None = None,
) -> RLRun:
    """Train, or go on with a run that was interrupted.

    Args:
        options: the run.
        restart: throw away what the folder holds.
        reward: another reward function with GRPOTrainer's signature; None: the verifier's.
        tell: gets lines of progress.

    Raises:
        UserError: the options don't fit, problems can't be trained on, or the folder holds another run.
    """
    recipe, budget = options.resolved_recipe(), options.resolved_budget()
    micro_batch(options, budget)
    require_trl()
    check_reporter(options.report_to)
    rows = training_rows(read_all(list(options.problems)))
    held_out, validation = validation_rows(options)
    _check_disjoint(rows, validation, held_out)
    folder = Folder(options.output)
    if restart:
        _clear(folder)
    record = _open(folder, options, recipe, budget, rows, validation, restart)
    from derivedata.trainers.rl_run import run_trainer

    status = "failed"
    try:
        done = run_trainer(
            options, recipe, budget, rows, validation[: options.validation_problems], reward=reward, tell=tell
        )
        record["resumed"] += [{"at": done.resumed_at, "lost_steps": done.lost_steps}] if done.resumed_at else []
        status = "done"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    finally:
        _save(folder, record | {"status": status, "ended": utc_now()})
    return RLRun(
        output=options.output,
        budget=budget,
        learning_rate=recipe.learning_rate(budget.batch),
        resumed_at=done.resumed_at,
        lost_steps=done.lost_steps,
        retired=done.retired,
        stopped=done.stopped,
        evaluations=done.evaluations,
    )


def _clear(folder: Folder) -> None:
    for room in ROOMS:
        folder.remove_tree(room)
    for log in LOGS:
        folder.remove(log)


def _check_disjoint(rows: list[dict], validation: list[dict], held_out: str | None) -> None:
    trained = {_prompt_key(row) for row in rows}
    both = sum(_prompt_key(row) in trained for row in validation)
    if both:
        raise UserError(
            "problems of the validation set are trained on too",
            where=held_out,
            value=f"{both:,} of {len(validation):,}",
            remedy="make the splits with `derivedata difficulty --validation N`",
        )


def _prompt_key(row: dict) -> str:
    return json.dumps(row["prompt"], sort_keys=True)


def _fingerprint(rows: Iterable[dict]) -> str | None:
    text = "\n".join(f"{row['uid']}\t{row['answer']}" for row in rows)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else None


def _config(options: RLOptions, recipe: Recipe, budget: RolloutBudget, rows, validation) -> dict[str, Any]:
    """What stands in run.json: the numbers of the run by the names that the planner reads."""
    given = {
        name: getattr(options, name)
        for name in ("max_tokens", "answers", "eval_samples", "eval_every", "save_every", "validation_problems")
    }
    return {
        "recipe": recipe.name,
        "model": options.model,
        "problems_per_batch": budget.problems,
        "rollouts_per_problem": budget.rollouts,
        "iterations": budget.iterations,
        "budget": budget.total,
        "seed": options.seed,
        "learning_rate": recipe.learning_rate(budget.batch),
        "thinking_tokens": options.thinking_at(),
        "peft": options.peft,
        "problems": {"files": list(options.problems), "count": len(rows), "sha256": _fingerprint(rows)},
        "validation": {"count": len(validation), "sha256": _fingerprint(validation)},
        "recipe_settings": asdict(recipe),
        "micro_batch": options.micro_batch,
        "report_to": options.report_to,
        **given,
    }


def _open(folder: Folder, options, recipe, budget, rows, validation, restart: bool) -> dict[str, Any]:
    """Write run.json, or refuse another configuration than the one that stands there."""
    config = _config(options, recipe, budget, rows, validation)
    record = new_run(RunConfig()).to_dict() | {"config": config, "resumed": []}
    record["versions"] = versions((*PACKAGES, "trl", "peft", "accelerate"))
    del record["fingerprint"], record["books"]
    try:
        before = json.loads(folder.read(CURRENT))
    except Missing:
        before = None
    except ValueError:
        raise UserError(
            "not a run record", where=folder.url_of(CURRENT), remedy="add --restart to start over"
        ) from None
    if before is not None and not restart:
        refuse(_identity(before.get("config", {})), _identity(config), output=folder.url)
        record["resumed"] = before.get("resumed", [])
        if budget.iterations < before["config"]["iterations"] and before["status"] == "done":
            raise UserError(
                "the run is longer than that already",
                where=folder.url,
                value=f"{before['config']['iterations']} iterations",
                remedy="name another output, or add --restart",
            )
    _save(folder, record)
    return record


def _identity(config: dict[str, Any]) -> RunConfig:
    identity = {name: value for name, value in config.items() if name not in _MAY_CHANGE}
    # Where the files lie doesn't matter, what is in them does.
    identity["problems"] = {k: v for k, v in identity.get("problems", {}).items() if k != "files"}
    return RunConfig(identity=identity)


def _save(folder: Folder, record: dict[str, Any]) -> None:
    folder.replace(CURRENT, json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")


def newest_checkpoint(output: str) -> Path | None:
    """The last whole checkpoint of a run; one that a kill cut off is passed over."""
    from derivedata.trainers.rl_hooks import STATE

    whole = [path.parent for path in Path(output, "checkpoints").glob(f"checkpoint-*/{STATE}")]
    return max(whole, key=lambda path: int(path.name.rsplit("-", 1)[1]), default=None)


if __name__ == "__main__":
    import sys

    from derivedata.cli import main

    main(["train", "rl", *sys.argv[1:]])

"""One run on TRL: what a recipe and a budget are in GRPOConfig, and the trainer built, resumed and saved."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig

from derivedata.errors import UserError
from derivedata.trainers.rewards import verified_reward
from derivedata.trainers.rl import newest_checkpoint
from derivedata.trainers.rl_budget import RolloutBudget
from derivedata.trainers.rl_checks import check_context, check_model_folder
from derivedata.trainers.rl_hooks import STATE, RecipeGRPOTrainer, loop_rows
from derivedata.trainers.rl_log import EVALUATIONS, RolloutLogCallback
from derivedata.trainers.rl_options import RLOptions, micro_batch, plain_prompt
from derivedata.trainers.rl_recipes import Recipe
from derivedata.trainers.rl_stream import ProblemStream
from derivedata.trainers.rl_thinking import thinking_limit

_EVAL_PROBLEMS = 64  # generated at once
_TELL_SECONDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What a call of the trainer did (fields as in rl.RLRun)."""

    resumed_at: int
    lost_steps: int
    retired: int
    stopped: str | None
    evaluations: tuple[dict[str, Any], ...]


def run_trainer(
    options: RLOptions,
    recipe: Recipe,
    budget: RolloutBudget,
    rows: list[dict[str, Any]],
    validation: list[dict[str, Any]],
    *,
    reward: Callable[..., list[float]] | None,
    tell: Callable[[str], None] | None,
) -> Done:
    """Train from the last whole checkpoint (or the start) to the end, and save the model."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    check_model_folder(options.model)
    tokenizer, context = _tokenizer(options.model)
    if tokenizer.chat_template is None:
        rows = [row | {"prompt": plain_prompt(row["prompt"])} for row in rows]
        validation = [row | {"prompt": plain_prompt(row["prompt"])} for row in validation]
    longest = check_context(tokenizer, [*rows, *validation], max_tokens=options.max_tokens, context=context)
    stream = ProblemStream(
        [row["uid"] for row in rows], batch=budget.problems, seed=options.seed, retire_at=recipe.retire_at
    )
    checkpoint = newest_checkpoint(options.output)
    step = 0
    if checkpoint is not None:
        state = json.loads((checkpoint / STATE).read_text())
        step = state["step"]
        stream.restore(state["stream"])
    log = RolloutLogCallback(
        options.output,
        right_above=sum(recipe.rewards) / 2,
        dropping=recipe.drop_zero_variance,
        retired=lambda: stream.retired_count,
        overwrite=True,
    )
    if reward is None:
        wrong, right = recipe.rewards
        reward = verified_reward(answers=options.answers, wrong=wrong, right=right)
    watch = _Watch(stream, log, tell, rounds=recipe.staleness + 1)
    args = trl_config(options, recipe, budget, evaluated=bool(validation), fresh=checkpoint is None)
    args.vllm_max_model_length = longest
    if stream.exhausted:
        args.max_steps, watch.stopped = step, watch.reason
    trainer = RecipeGRPOTrainer(
        recipe=recipe,
        stream=stream,
        rows=rows,
        model=options.model,
        args=args,
        reward_funcs=log.watch(reward),
        train_dataset=loop_rows(args.generation_batch_size // args.num_generations),
        eval_dataset=_eval_rows(validation),
        processing_class=tokenizer,
        callbacks=[log, watch],
        peft_config=_lora() if options.peft else None,
    )
    trainer.remove_callback(PrinterCallback)
    if (limit := options.thinking_at()) is not None:
        trainer.thinking = thinking_limit(tokenizer, trainer.eos_token_ids, limit=limit, total=options.max_tokens)
    # A run that is complete goes through here too: it loads its last checkpoint, whose model may not be saved yet.
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    _save_model(trainer, tokenizer, Path(options.output))
    return Done(
        resumed_at=step,
        lost_steps=log.lost_steps,
        retired=stream.retired_count,
        stopped=watch.stopped,
        evaluations=tuple(log.files.rows(EVALUATIONS)),
    )


def trl_config(
    options: RLOptions, recipe: Recipe, budget: RolloutBudget, *, evaluated: bool, fresh: bool = True
) -> GRPOConfig:
    """TRL's configuration of a run.

    Args:
        options: the run's.
        recipe: the recipe with the options' changes.
        budget: (B_p, n, M).
        evaluated: there is a validation set.
        fresh: the run starts now, so it is evaluated at C = 0 too.
    """
    gpu = torch.cuda.is_available() and not options.cpu
    world = int(os.environ.get("WORLD_SIZE", "1"))
    micro = micro_batch(options, budget)
    parts = budget.batch // world // micro
    every = options.every(options.eval_every, budget)
    return GRPOConfig(
        output_dir=str(Path(options.output, "checkpoints")),
        # The budget.
        num_generations=budget.rollouts,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=parts,
        steps_per_generation=parts * (recipe.staleness + 1),
        max_steps=budget.iterations,
        max_completion_length=options.max_tokens,
        # The recipe.
        loss_type=recipe.loss,
        epsilon_high=recipe.clip_high,
        scale_rewards="group" if recipe.advantages == "group" else "none",
        beta=recipe.kl,
        entropy_coef=recipe.entropy,
        cast_lm_head_to_fp32=recipe.fp32_head,
        learning_rate=recipe.learning_rate(budget.batch),
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=recipe.warmup_steps,
        adam_epsilon=recipe.adam_epsilon,
        weight_decay=recipe.weight_decay,
        temperature=recipe.temperature,
        vllm_importance_sampling_mode="token_truncate",
        # The machine.
        use_cpu=not gpu,
        use_vllm=gpu,
        bf16=gpu,
        gradient_checkpointing=gpu,
        dataloader_pin_memory=gpu,
        # What is looked at and kept.
        eval_strategy="steps" if evaluated else "no",
        do_eval=evaluated,
        eval_steps=every,
        eval_on_start=evaluated and fresh,
        num_generations_eval=options.eval_samples,
        per_device_eval_batch_size=options.eval_samples * _EVAL_PROBLEMS,
        save_strategy="steps",
        save_steps=every if options.save_every is None else options.every(options.save_every, budget),
        save_total_limit=2,
        logging_steps=1,
        report_to=[] if options.report_to == "none" else [options.report_to],
        disable_tqdm=True,
        seed=options.seed,
    )


class _Watch(TrainerCallback):
    """Ends a run that has no problems left, and tells how it goes."""

    def __init__(self, stream: ProblemStream, log: RolloutLogCallback, tell: Callable[[str], None] | None, rounds: int):
        self.stream, self.log, self.tell, self.rounds = stream, log, tell, rounds
        self.stopped: str | None = None
        self._told = 0.0

    @property
    def reason(self) -> str:
        """Why no batch can be drawn."""
        left = len(self.stream.uids) - self.stream.retired_count
        return (
            f"{left:,} problems are left below the pass rate {self.stream.retire_at}, "
            f"and a batch takes {self.stream.batch:,}"
        )

    def on_step_end(self, args, state, control, **_):
        drawing_next = state.global_step % self.rounds == 0 and state.global_step < args.max_steps
        if drawing_next and self.stream.exhausted:
            self.stopped = self.reason
            control.should_training_stop = control.should_save = True
            control.should_evaluate = args.eval_strategy != "no"

    def on_log(self, args, state, control, logs=None, **_):
        if self.tell is None or not logs or "entropy" not in logs or time.monotonic() - self._told < _TELL_SECONDS:
            return
        self._told = time.monotonic()
        row = self.log.current or {}
        said = [f"step {state.global_step:,}/{args.max_steps:,}", f"C {row.get('rollouts', 0):,}"]
        said += [f"{name} {row[name]:.3g}" for name in ("reward", "entropy", "length") if row.get(name) is not None]
        self.tell("  ".join(said))

    def on_evaluate(self, args, state, control, **_):
        row = self.log.evaluated
        if self.tell is not None and row is not None and row["step"] == state.global_step:
            k = row["k"]
            scores = "  ".join(f"{name}@{k} {row[name]:.3f}" for name in ("avg", "best", "worst"))
            self.tell(f"step {state.global_step:,}/{args.max_steps:,}  C {row['rollouts']:,}  validation {scores}")


def _tokenizer(model: str) -> tuple[Any, int | None]:
    """The tokenizer, and the tokens of the model's context."""
    try:
        config = AutoConfig.from_pretrained(model)
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    except (OSError, ValueError) as error:
        raise UserError("the model can't be loaded", where="--model", value=str(error).splitlines()[0]) from None
    return tokenizer, getattr(config.get_text_config(), "max_position_embeddings", None)


def _eval_rows(validation: list[dict[str, Any]]):
    if not validation:
        return None
    from datasets import Dataset

    return Dataset.from_list(validation)


def _lora():
    try:
        from peft import LoraConfig
    except ImportError:
        raise UserError("--peft needs peft", remedy="install it with pip install 'derivedata[rl]'") from None
    # TRL computes log-probabilities from the LM head's own weights, so an adapter there would never be trained.
    return LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def _save_model(trainer: RecipeGRPOTrainer, tokenizer, output: Path) -> None:
    if not trainer.args.should_save:
        return
    temporary = output / "model.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    trainer.save_model(str(temporary))
    tokenizer.save_pretrained(temporary)
    shutil.rmtree(output / "model", ignore_errors=True)
    temporary.rename(output / "model")

"""Effective tokens in the logs of any trainer of transformers or TRL, so that people keep the trainer they have.

    callback = EffectiveTokensCallback({("fresh", None): 30_000_000, ("paraphrase", "faq"): 12_000_000}, law=law)
    callback.attach(trainer)                  # or trainer.add_callback(callback), when nothing reports elsewhere

Log lines then hold tokens, fresh_tokens, derived_tokens, by_strategy, effective_tokens and law_loss as the trainer's
own logs do, and `trainer.state.log_history` keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from derivedata.scaling.law import Law
from derivedata.trainers.effective import Seen, account
from derivedata.trainers.packing import Blocks, Kind
from derivedata.trainers.reporting import numbers
from derivedata.trainers.tokens import FRESH, REPEAT


def seen_after(kinds: Mapping[Kind, int], epochs: float) -> Seen:
    """Tokens seen after some epochs of a shuffled set with these tokens by (strategy, style); its repeats are counted.

    Exact at the ends of epochs, the expectation in between.
    """
    seen = Seen()
    for (strategy, style), count in kinds.items():
        if strategy == FRESH:
            seen.add({(FRESH, None): round(count * min(1.0, epochs))})
            seen.add({(REPEAT, None): round(count * max(0.0, epochs - 1))})
        else:
            seen.add({(strategy, style): round(count * epochs)})
    return seen


class EffectiveTokensCallback(TrainerCallback):
    """Adds the account of effective tokens to every log line.

    Args:
        data: tokens of one epoch by (strategy, style); fresh ones are ("fresh", None). Or the blocks themselves
            (`derivedata.trainers.packing.Blocks`), when the trainer reads them in their order: then it is exact.
        law: values the tokens.
        n_params: N without the input embedding; None: counted on the model.
    """

    def __init__(self, data: Mapping[Kind, int] | Blocks, law: Law, n_params: int | None = None):
        self.data, self.law, self.n_params = data, law, n_params
        self._seen, self._blocks = Seen(), 0

    def attach(self, trainer: Any) -> EffectiveTokensCallback:
        """Stand before the callbacks that report to Weights & Biases and the like, so that they see the numbers."""
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Count the model's parameters."""
        if self.n_params is None:
            embedding = model.get_input_embeddings().weight
            head = getattr(model.get_output_embeddings(), "weight", None)
            total = sum(p.numel() for p in model.parameters())
            # Tied weights are the head's, which counts.
            self.n_params = total if head is embedding else total - embedding.numel()

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Add the account to the line that is about to be logged."""
        row = account(self._seen_at(args, state), self.law, self.n_params)
        row["extrapolated"] = int(row["extrapolated"])
        told = numbers(row)
        if logs is not None:
            logs.update(told)
        if state.log_history:
            state.log_history[-1].update(told)

    def _seen_at(self, args, state) -> Seen:
        if isinstance(self.data, Mapping):
            return seen_after(self.data, state.epoch or 0.0)
        step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        upto = state.global_step * step
        if upto < self._blocks:  # another training began
            self._seen, self._blocks = Seen(), 0
        while self._blocks < upto:
            epoch, first = divmod(self._blocks, self.data.blocks)
            count = min(upto - self._blocks, self.data.blocks - first)
            kinds = self.data.kinds(first, count)
            if epoch:
                kinds = {(REPEAT, None) if kind == (FRESH, None) else kind: n for kind, n in kinds.items()}
            self._seen.add(kinds)
            self._blocks += count
        return self._seen

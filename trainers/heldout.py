"""Loss on text that was held out, at a fixed number of tokens: over all, by source, and by style; and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from derivedata.errors import UserError
from derivedata.trainers.learner import Learner
from derivedata.trainers.packing import Packed
from derivedata.trainers.tokens import TokenStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """loss: nats a token over everything. by: the same by `source:NAME` and `style:NAME`. bits_per_byte: keyed alike,
    `all` for everything: comparable between tokenizers."""

    loss: float
    by: Mapping[str, float]
    bits_per_byte: Mapping[str, float]


class HeldOut:
    """Held-out blocks.

    Args:
        store: the documents, each used once.
        length: tokens of a block.
        tokens: how many to score, at most; whole blocks.

    Raises:
        UserError: they fill no block.
    """

    def __init__(self, store: TokenStore, length: int, tokens: int):
        packed = Packed(store, length)
        self.blocks = min(packed.blocks, max(1, tokens // length))
        self.store, self.tokens = store, self.blocks * length
        if packed.blocks == 0:
            raise UserError(
                "no held-out text: it fills no block",
                value=f"{packed.tokens} tokens, blocks of {length}",
                remedy="hold out a larger share with --holdout, or name held-out text with --eval",
            )
        self._ids = packed.read(0, self.blocks)
        # For each token the label of its document.
        used = int(np.searchsorted(packed.ends, self.tokens, side="left")) + 1
        lengths = np.diff(np.concatenate([[0], np.minimum(packed.ends[:used], self.tokens)]))
        self._label = np.repeat(np.asarray(store.label)[packed.order[:used]], lengths).reshape(self._ids.shape)
        # Bytes a token, from whole documents: the cut at the end of the last block does not matter.
        count = len(store.labels)
        labels, size = np.asarray(store.label), store.lengths
        self._bytes = np.bincount(labels, store.bytes, count)
        self._ids_of = np.bincount(labels, size, count)

    def score(self, learner: Learner) -> Scores:
        """Score the model as it is; every rank its share."""
        import torch

        count = len(self.store.labels)
        sums = np.zeros((2, count))
        mine = range(learner.ranks.rank, self.blocks, learner.ranks.world)
        size = learner.recipe.micro_batch
        training = learner.model.training
        learner.model.eval()
        with torch.no_grad():
            for at in range(0, len(mine), size):
                rows = list(mine[at : at + size])
                nll, _ = learner.token_losses(learner.put(self._ids[rows]))
                label = self._label[rows][:, 1:].ravel()
                sums[0] += np.bincount(label, nll.double().cpu().numpy().ravel(), count)
                sums[1] += np.bincount(label, minlength=count)
        learner.model.train(training)
        sums = learner.ranks.sum(torch.from_numpy(sums).to(learner.ranks.device)).cpu().numpy()
        return self._scores(*sums)

    def _scores(self, nll: np.ndarray, predicted: np.ndarray) -> Scores:
        groups = {"all": np.ones(len(nll), bool)}
        for kind in ("source", "style"):
            names = [getattr(label, kind) for label in self.store.labels]
            for name in sorted({name for name in names if name is not None}):
                groups[f"{kind}:{name}"] = np.array([each == name for each in names])
        losses, bits = {}, {}
        for name, mask in groups.items():
            if predicted[mask].sum() == 0:
                continue
            losses[name] = float(nll[mask].sum() / predicted[mask].sum())
            size = self._bytes[mask].sum()
            if size:
                bits[name] = losses[name] * float(self._ids_of[mask].sum() / size) / math.log(2)
        return Scores(loss=losses.pop("all"), by=losses, bits_per_byte=bits)

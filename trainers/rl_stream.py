"""The order in which a run draws problems, and the prompts that it retires.

Every epoch is a permutation of its own, from the seed and the epoch's number. A prompt whose pass rate over all its
rollouts so far reaches `retire_at` is not drawn again (ScaleRL, arXiv 2510.13786, section 3). The whole state is small
and JSON, so a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from derivedata.errors import UserError


class ProblemStream:
    """Draws batches of different problems, and remembers how each was solved.

    Args:
        uids: the problems' keys, in the order of the file.
        batch: B_p, problems of a draw.
        seed: of the order.
        retire_at: pass rate from which a problem is not drawn again; None: never.
    """

    def __init__(self, uids: Sequence[str], *, batch: int, seed: int, retire_at: float | None = None):
        self.uids = list(uids)
        self.batch, self.seed, self.retire_at = batch, seed, retire_at
        self._row = {uid: row for row, uid in enumerate(self.uids)}
        if len(self._row) != len(self.uids):
            twice = next(uid for row, uid in enumerate(self.uids) if self._row[uid] != row)
            raise UserError("two problems have the same uid", value=twice)
        if batch > len(self.uids):
            raise UserError(
                "a batch can't hold more problems than there are",
                where="--problems-per-batch",
                value=f"{batch:,} of {len(self.uids):,}",
            )
        self.right = np.zeros(len(self.uids), np.int64)  # right rollouts of each problem so far
        self.tried = np.zeros(len(self.uids), np.int64)  # all rollouts of each problem so far
        self.epoch, self.position = 0, 0
        self._order = self._permutation()

    def _permutation(self) -> np.ndarray:
        return np.random.default_rng([self.seed, self.epoch]).permutation(len(self.uids))

    def retired(self) -> np.ndarray:
        """Booleans by row: problems that are not drawn again."""
        if self.retire_at is None:
            return np.zeros(len(self.uids), bool)
        # A product, so that 9 of 10 is exactly 0.9 of them in floating point too.
        return (self.tried > 0) & (self.right >= self.retire_at * self.tried - 1e-9)

    @property
    def retired_count(self) -> int:
        """How many problems are retired."""
        return int(self.retired().sum())

    @property
    def exhausted(self) -> bool:
        """Whether too few problems are left for a batch."""
        return len(self.uids) - self.retired_count < self.batch

    def draw(self) -> list[int]:
        """The rows of the next batch; the rest of an epoch that fills no batch is left out, as TRL's sampler does.

        Raises:
            UserError: fewer problems than a batch are left.
        """
        if self.exhausted:
            raise UserError(
                f"{len(self.uids) - self.retired_count} problems are left below the pass rate {self.retire_at}",
                value=f"a batch takes {self.batch}",
                remedy="take harder problems",
            )
        gone = self.retired()
        while True:
            rows: list[int] = []
            position = self.position
            while position < len(self._order) and len(rows) < self.batch:
                row = int(self._order[position])
                position += 1
                if not gone[row]:
                    rows.append(row)
            if len(rows) == self.batch:
                self.position = position
                return rows
            self.epoch, self.position = self.epoch + 1, 0
            self._order = self._permutation()

    def record(self, row: int, right: int, tried: int) -> None:
        """Add a group's outcome: `right` of `tried` rollouts of the problem in this row."""
        self.right[row] += right
        self.tried[row] += tried

    def state(self) -> dict[str, Any]:
        """What `restore` needs, for JSON; only problems that were tried are listed."""
        rows = np.flatnonzero(self.tried)
        return {
            "epoch": self.epoch,
            "position": self.position,
            "history": {self.uids[row]: [int(self.right[row]), int(self.tried[row])] for row in rows},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            UserError: the state speaks of problems that are not there.
        """
        self.right[:], self.tried[:] = 0, 0
        for uid, (right, tried) in state["history"].items():
            if uid not in self._row:
                raise UserError("the checkpoint was made with other problems", value=uid)
            self.record(self._row[uid], right, tried)
        self.epoch, self.position = state["epoch"], state["position"]
        self._order = self._permutation()

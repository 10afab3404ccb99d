"""Runs Datatrove pipelines for the commands, with our own idea of progress: only the ledger says what is done."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import cache
from typing import IO

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep


@cache
def _silence() -> IO[str]:
    # Never closed: Datatrove leaves its logger pointing at whatever stderr is while a task runs.
    return open(os.devnull, "w")


class LocalExecutor(LocalPipelineExecutor):
    """Datatrove's local executor, whose log goes to its files alone: the terminal belongs to the command."""

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1):
        with contextlib.redirect_stderr(_silence()):
            return super()._run_for_rank(rank, local_rank, node_rank)


def run_locally(steps: Sequence[PipelineStep], *, tasks: int, workers: int, logging_dir: str) -> None:
    """Run steps as `tasks` tasks, `workers` at a time; the first failing task's error is raised."""
    from datatrove.utils.logging import logger

    logger.remove()
    # Datatrove's completion markers would skip a task whose share of the work has changed.
    LocalExecutor(
        list(steps), tasks=tasks, workers=min(workers, tasks), logging_dir=logging_dir, skip_completed=False
    ).run()

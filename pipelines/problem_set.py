"""The problems whose difficulty is measured: read, put into a seeded order, cut into chunks that are committed at once.

The first problems of that order are a random sample of the set: early stopping fits its prior to them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from derivedata.pipelines.source import INPUT, keyed
from derivedata.problems.problem import Problem, count_problems
from derivedata.problems.read import read_all
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.tables import REJECTED, Part, rows_to_table

if TYPE_CHECKING:
    from derivedata.problems.layouts import LayoutChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemSet:
    """Problems in their seeded order; chunk i holds `problems[edges[i]:edges[i + 1]]`, the first ones are the pilot."""

    problems: tuple[Problem, ...]
    edges: tuple[int, ...]
    pilot_chunks: int

    @property
    def chunks(self) -> int:
        return len(self.edges) - 1

    def chunk(self, index: int) -> tuple[Problem, ...]:
        """The problems of a chunk."""
        return self.problems[self.edges[index] : self.edges[index + 1]]

    @property
    def sha256(self) -> str:
        """What the input is: the same rows at the same places give the same."""
        return hashlib.sha256("\n".join(sorted(problem.uid for problem in self.problems)).encode()).hexdigest()

    def counts(self) -> dict:
        """The books of the reading; see `count_problems`."""
        return count_problems(list(self.problems))


def open_problems(
    sources: Sequence[str], choice: LayoutChoice | None, *, seed: int, chunk_problems: int, pilot: int = 0
) -> ProblemSet:
    """Read problems and put them in order.

    Args:
        sources, choice: as in `read_problems`.
        seed: of the order.
        chunk_problems: problems that are committed at once.
        pilot: how many come first, in chunks of their own (see `pilot_problems`).

    Raises:
        UserError: nothing is found, or nothing that can be scored.
    """
    return order_problems(read_all(sources, choice), seed=seed, chunk_problems=chunk_problems, pilot=pilot)


def order_problems(problems: Sequence[Problem], *, seed: int, chunk_problems: int, pilot: int = 0) -> ProblemSet:
    """Problems in their seeded order and cut into chunks; arguments as in `open_problems`."""
    ordered = tuple(sorted(problems, key=lambda problem: keyed(seed, problem.uid)))
    pilot = min(pilot, len(ordered))
    first = [*range(0, pilot, chunk_problems)]
    edges = [*first, *range(pilot, len(ordered), chunk_problems), len(ordered)]
    return ProblemSet(problems=ordered, edges=tuple(edges), pilot_chunks=len(first))


def chunk_sizes(problems: ProblemSet) -> list[int]:
    """How many problems each chunk holds."""
    return [stop - start for start, stop in pairwise(problems.edges)]


def publish_input(folder: Folder, problems: ProblemSet, run_id: str) -> None:
    """Commit what became of the input's rows: rows = problems that can be scored + rejected rows, which are kept."""
    from derivedata.corpus.writer import ShardWriter

    ledger = Ledger(folder)
    if ledger.is_committed(INPUT):
        return
    bad = sorted((problem for problem in problems.problems if problem.unscored), key=lambda p: (p.path, p.row))
    counts = problems.counts()
    books = Books(planned=counts["rows"], accepted=counts["scorable"], rejected=counts["unscored"])
    with folder.scratch() as scratch:
        files = {}
        if bad:
            with ShardWriter(scratch / "rejected.jsonl.zst") as writer:
                for problem in bad:
                    writer.write(
                        {"uid": problem.uid, "reason": problem.unscored, **_place(problem), "text": _text(problem)}
                    )
            files[f"rejected/{INPUT}.jsonl.zst"] = scratch / "rejected.jsonl.zst"
        rows = [
            {"stage": INPUT, "reason": problem.unscored, **_place(problem), "source_uid": problem.uid, "run_id": run_id}
            for problem in bad
        ]
        tables = {"rejected": rows_to_table(rows, REJECTED)} if rows else {}
        ledger.publish(INPUT, Part(books=books, stage=INPUT, files=files, tables=tables))


def _place(problem: Problem) -> dict:
    return {"path": problem.path, "line": problem.row + 1}


def _text(problem: Problem) -> str:
    """Enough of a row to see what is wrong with it."""
    told = {"prompt": list(problem.prompt), "ground_truth": problem.ground_truth, "extra_info": problem.extra_info}
    return json.dumps(told, ensure_ascii=False, default=str)[:2_000]

"""A Datatrove step that sends requests to a model server and commits what comes back exactly once.

`DerivationStage` is the loop that paraphrase (and every later stage that generates) shares: read a unit of work, make
its requests ahead of time, keep the server full across unit boundaries, journal every finished request, and commit a
unit when each of its requests has an outcome. What is asked and what an answer means is the subclass's.

A kill at any moment costs the requests in flight and at most one journal segment; started again, the stage goes on
from the journal.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from derivedata.errors import UserError
from derivedata.generation.client import Client, Completion, Failure, Request, generate
from derivedata.generation.endpoint import raise_if_failed, read_endpoints
from derivedata.pipelines.leaving import leaving
from derivedata.pipelines.progress import RankProgress
from derivedata.pipelines.unit_run import Planned, UnitRun
from derivedata.store.ledger import AlreadyCommitted, Decision, Ledger
from derivedata.store.paths import Folder
from derivedata.store.tables import Part
from derivedata.store.units import Unit

PREPARE_CHARS = 1 << 18  # of the items of such a batch
PREPARE = 32  # items whose requests are made at once, in a thread, while the ones before are being answered
FIRST_REFUSED = 32  # requests after which a server that refused every one is believed


class DerivationStage(PipelineStep):
    """Base of the stages that generate. Yields the documents of each unit as it is committed by this rank."""

    type = "🧬 - DERIVE"

    def __init__(self, *, output: str, endpoint_file: str, window: int, run_id: str):
        super().__init__()
        self.output, self.endpoint_file, self.window, self.run_id = output, endpoint_file, window, run_id
        self.emitted: queue.SimpleQueue | None = None  # while a rank runs: documents of committed units
        self._answers, self._failures = 0, 0

    @cached_property
    def folder(self) -> Folder:
        return Folder(self.output)

    # What a subclass says.

    @abstractmethod
    def missing(self, ledger: Ledger) -> list[Unit]:
        """The units that are still to be generated, by all ranks together, in the seeded order."""

    @abstractmethod
    def load(self, unit: Unit) -> Sequence[Any]:
        """The items of a unit, in order."""

    @abstractmethod
    def plan(self, unit: Unit, items: Sequence[Any], first: int) -> list[Planned]:
        """Every key of these items (positions from `first`); runs in a thread, may tokenise."""

    @abstractmethod
    def judge(self, planned: Planned, completion: Completion) -> dict[str, Any]:
        """The outcome of an answered request: at least `outcome` (accepted | rejected), `tokens`, and `reason`."""

    @abstractmethod
    def part(
        self, unit: Unit, items: Sequence[Any], records: list[dict[str, Any]], outside: int, scratch: Path
    ) -> Part:
        """What the unit puts into the output; the same records must give the same bytes.

        Args:
            unit: what is committed.
            items: its items, in order.
            records: their outcomes, in any order.
            outside: how many outcomes lie beyond the budget.
            scratch: a folder for files.
        """

    def failed(self, planned: Planned, failure: Failure) -> None:
        """Hears of a request that could not be answered, before it is journalled; may end the run by a UserError."""

    def count_tokens(self, text: str) -> int:
        """Tokens of an answer, for servers that don't say what they used."""
        raise NotImplementedError

    def size(self, item: Any) -> int:
        """Characters of an item, about: how much is planned ahead depends on it."""
        return 1

    def admit(self, run: UnitRun) -> bool | None:
        """Whether the next items are wanted: yes, no for good, or None for not known before more is finished."""
        return True

    def finish(self, ledger: Ledger, run: UnitRun) -> None:
        """Decide and commit a unit whose keys all have an outcome."""
        if (decision := self.decide(ledger, run)) is not None:
            self.commit(ledger, decision.unit, decision)

    def finish_decided(self, ledger: Ledger) -> None:
        """Commit what an earlier run decided and didn't get to commit; needs no model."""
        for unit, decision in ledger.decisions().items():
            self.commit(ledger, unit, decision)

    def decide(self, ledger: Ledger, run: UnitRun) -> Decision | None:
        """Settle which outcomes count; None when another writer has committed the unit."""
        totals = {"tokens": sum(run.tokens.values()), "fed": run.fed}
        return ledger.decide(run.unit, totals, keys=run.planned)

    def emit(self, part: Part) -> Iterable[Any]:
        """Datatrove documents of a committed part, for the steps that follow."""
        return ()

    # The loop.

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        self.emitted = queue.SimpleQueue()
        self.progress = RankProgress(self.folder, rank)
        loop_ready, box = threading.Event(), {}

        def work() -> None:
            async def main() -> None:
                box["loop"], box["task"] = asyncio.get_running_loop(), asyncio.current_task()
                loop_ready.set()
                await self._work(rank, world_size)

            try:
                asyncio.run(main())
                self.emitted.put(None)
            except BaseException as error:
                self.emitted.put(error)
            finally:
                loop_ready.set()

        # The event loop has a thread of its own, so that this one can hand documents on and hear Ctrl-C.
        thread = threading.Thread(target=work, name=f"derive-{rank}", daemon=True)
        with self.track_time("rank"):
            thread.start()
            try:
                while (item := self.emitted.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    yield from item
            except BaseException:
                loop_ready.wait()
                if thread.is_alive() and "task" in box:
                    box["loop"].call_soon_threadsafe(box["task"].cancel)
                raise
            finally:
                thread.join()
                self.progress.close()

    async def _work(self, rank: int, world_size: int) -> None:
        self._ledger = Ledger(self.folder)
        self._runs: list[UnitRun] = []
        self._waiting: list[UnitRun] = []  # complete, and not committed yet
        self._changed, self._committing = asyncio.Event(), asyncio.Lock()
        client = Client(
            read_endpoints(self.endpoint_file),
            window=self.window,
            alive=partial(raise_if_failed, self.endpoint_file),
            count=self.count_tokens,
        )
        try:
            # A group, so that a failed commit ends the rank now and not when the last unit is done.
            async with asyncio.TaskGroup() as self._tasks, client:
                await generate(client, self._feed(rank, world_size), self._on_done)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            # However this ends, what is finished is kept: of units in work, and of those that wait to be committed.
            self._close_journals()

    async def _opened(self, rank: int, world_size: int) -> AsyncIterator[tuple[UnitRun, Sequence[Any]]]:
        """This rank's units one after the other, with their items and what the journal holds of them."""
        units = await asyncio.to_thread(self.missing, self._ledger)
        # By chunk, so that what belongs to a chunk is made by one rank, whatever of it is missing.
        for unit in (unit for unit in units if unit.chunk % world_size == rank):
            items = await asyncio.to_thread(self.load, unit)
            journal = self._ledger.journal(unit)
            found = {record["key"]: record for record in await asyncio.to_thread(list, journal.records())}
            run = UnitRun(unit, journal, found)
            self._runs.append(run)
            yield run, items

    def _fed(self, run: UnitRun) -> None:
        """All keys of a unit are planned."""
        run.finished_feeding = True
        self._maybe_finish(run)

    async def _feed(self, rank: int, world_size: int) -> AsyncIterator[Request]:
        async for run, items in self._opened(rank, world_size):
            unit, found = run.unit, run.found
            wanted = True
            # What an earlier run asked for is finished, wanted or not, so that the journal holds whole documents only.
            asked = max((record["position"] for record in found.values()), default=-1)
            async for position, planned in self._planned(unit, items):
                if position > asked and leaving():
                    return  # what is in flight is finished; the journal keeps it
                if position > asked and not (wanted := await self._admitted(run)):
                    break
                for one in planned:
                    run.plan(one)
                run.fed = position + 1
                for one in planned:
                    if (record := run.found.pop(one.key, None)) is not None:
                        self._settle(run, one, record, journalled=True)
                    elif one.outcome is not None:
                        self._settle(run, one, {"key": one.key, "tokens": 0, **one.outcome})
                    else:
                        yield Request(
                            key=one.key,
                            prompt=one.prompt,
                            sampling=one.sampling,
                            seed=one.seed,
                            tag=(run, one),
                            group=one.group,
                            prompt_tokens=one.prompt_tokens,
                        )
            if run.found:
                raise UserError(
                    f"the journal of unit {unit.name} holds {len(run.found)} outcomes that nobody asked for now",
                    where=self.folder.url_of(f"journal/{unit.name}"),
                    remedy="was it written by another configuration? Add --restart to start over",
                )
            if leaving() and run.fed < unit.stop:
                return
            self._fed(run)
            if not wanted:
                return

    async def _planned(self, unit: Unit, items: Sequence[Any]) -> AsyncIterator[tuple[int, list[Planned]]]:
        """Position by position, what is planned for it; the next batch is made while this one is answered."""
        stop = self._batch_end(unit, items, unit.first)
        first, ahead = unit.first, self._plan_ahead(unit, items, unit.first, stop)
        while first < unit.stop:
            batch = await ahead
            end, stop = stop, self._batch_end(unit, items, stop)
            if end < unit.stop:
                ahead = self._plan_ahead(unit, items, end, stop)
            by_position: dict[int, list[Planned]] = {position: [] for position in range(first, end)}
            for planned in batch:
                by_position[planned.position].append(planned)
            for position, planned in by_position.items():
                yield position, planned
            first = end

    def _batch_end(self, unit: Unit, items: Sequence[Any], first: int) -> int:
        """Where a batch that begins at `first` ends: a few items, fewer where they are long."""
        stop, size = first, 0
        while stop < unit.stop and stop - first < PREPARE and size < PREPARE_CHARS:
            size += self.size(items[stop - unit.first])
            stop += 1
        return stop

    def _plan_ahead(self, unit: Unit, items: Sequence[Any], first: int, stop: int) -> asyncio.Future:
        batch = items[first - unit.first : stop - unit.first]
        return asyncio.ensure_future(asyncio.to_thread(self.plan, unit, batch, first))

    async def _admitted(self, run: UnitRun) -> bool:
        while (answer := False if leaving() else self.admit(run)) is None:
            self._changed.clear()
            await self._changed.wait()
        return answer

    def _hear(self, result: Completion | Failure) -> None:
        """Count what the server says it used; end the run when it refuses everything from the first request on."""
        self._answers += 1
        self._failures += isinstance(result, Failure)
        if isinstance(result, Completion):
            self.progress.add("prompt_tokens", result.prompt_tokens)
            self.progress.add("cached_tokens", result.cached_tokens or 0)
        if self._failures == self._answers == FIRST_REFUSED:
            raise UserError(
                f"the server refused each of the first {FIRST_REFUSED} requests: {result.detail}",
                where=self.output,
                remedy="nothing of them is kept: change what it says and run again",
            )

    def _on_done(self, request: Request, result: Completion | Failure) -> None:
        run, planned = request.tag
        self._hear(result)
        if isinstance(result, Failure):
            self.failed(planned, result)
            record = {"outcome": "rejected", "reason": result.reason, "detail": result.detail, "text": "", "tokens": 0}
        else:
            record = self.judge(planned, result)
        self._settle(run, planned, {"key": planned.key, **record})
        self._maybe_finish(run)

    def _settle(self, run: UnitRun, planned: Planned, record: dict[str, Any], journalled: bool = False) -> None:
        record = {"position": planned.position, **planned.info, "run_id": self.run_id, **record}
        if not journalled:
            run.journal.append(record)
        run.settle(planned.position, record)
        self.progress.count(record, fresh=not journalled)
        if not journalled:
            self.stat_update(record["outcome"])
        self._changed.set()

    def _maybe_finish(self, run: UnitRun) -> None:
        if run.complete and run in self._runs:
            self._runs.remove(run)
            self._waiting.append(run)
            self._tasks.create_task(self._finish(run))

    async def _finish(self, run: UnitRun) -> None:
        # One at a time: a budget is settled in the order of the chunks.
        async with self._committing:
            await asyncio.to_thread(run.journal.close)
            await asyncio.to_thread(self.finish, self._ledger, run)
            self._waiting.remove(run)
            self.progress.committed()

    def _close_journals(self) -> None:
        failures = []
        for run in (*self._runs, *self._waiting):
            try:
                run.journal.close()
            except UserError as error:  # a full disk, say: the other journals may have room
                failures.append(error)
        if failures:
            raise failures[0]

    def commit(self, ledger: Ledger, unit: Unit, decision: Decision) -> None:
        """Materialise `unit`, the decision's or the part of it that a budget leaves, from the decided records."""
        inside, outside = [], 0
        try:
            for record in ledger.records(decision):
                if unit.first <= record["position"] < unit.stop:
                    inside.append(record)
                else:
                    outside += 1
        except AlreadyCommitted:
            return
        with self.folder.scratch() as scratch:
            part = self.part(unit, self.load(unit), inside, outside, scratch)
            documents = list(self.emit(part)) if self.emitted else []
            if ledger.commit(unit, part, decision) and self.emitted:
                self.emitted.put(documents)

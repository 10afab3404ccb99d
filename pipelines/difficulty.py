"""Measure how hard problems are for a model: `derivedata difficulty PROBLEMS -o OUT`.

`DifficultyStage` is the Datatrove step: samples go out singly with many problems in flight, answers are verified in
processes beside the event loop, and a problem stops as soon as its label is certain enough.
`derivedata.pipelines.difficulty_run` starts the server and drives it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derivedata.errors import UserError
from derivedata.generation.asking import Asker
from derivedata.generation.client import Completion, Failure, Request
from derivedata.generation.seeds import request_seed
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.derivation import DerivationStage, Planned, UnitRun
from derivedata.pipelines.difficulty_config import DifficultyConfig, read_set
from derivedata.pipelines.leaving import leaving
from derivedata.pipelines.problem_set import ProblemSet, chunk_sizes, order_problems
from derivedata.pipelines.scored import FAILED, SAMPLE, TABLES, UNSCORED, ScoredPart, Tally
from derivedata.problems.bands import Bands, parse_bands
from derivedata.problems.early_stopping import StoppingRule, stopping_rule
from derivedata.problems.extract import demanded_form
from derivedata.problems.verifier import Verdict, Verifier
from derivedata.problems.workers import WorkerLimits
from derivedata.store.ledger import Ledger
from derivedata.store.tables import Part
from derivedata.store.units import Unit, missing

if TYPE_CHECKING:
    from derivedata.problems.layouts import LayoutChoice
    from derivedata.problems.passrate import BetaMixture
    from derivedata.problems.problem import Problem

VERIFIER_TRIES = 2
MOST_UNVERIFIED = 4_096  # answers that wait for their verdict before no more are asked for


class Rolling:
    """A problem on its way: which samples are still to be sent, how many are in flight, what came back."""

    def __init__(self, run: UnitRun, planned: Planned, problem: Problem, rule: StoppingRule | None):
        self.run, self.planned, self.problem, self.rule = run, planned, problem, rule
        self.tally = Tally(run.unit.high)
        self.form = demanded_form(problem.prompt_text)
        self.left = deque(range(run.unit.low, run.unit.high))
        self.in_flight = 0
        self.queued = False

    @property
    def may_send(self) -> bool:
        # Only what is needed for certain: which samples are drawn then follows from their outcomes, never from timing.
        return bool(self.left) and self.in_flight < self.tally.may_send(self.rule)

    @property
    def finished(self) -> bool:
        return not self.in_flight and not self.may_send


class DifficultyStage(DerivationStage):
    """Roll problems out, verify, and commit what comes back."""

    name = "🎲 Difficulty"

    def __init__(
        self,
        *,
        config: DifficultyConfig,
        sources: Sequence[str],
        choice: LayoutChoice | None = None,
        purpose: str = SAMPLE,
        selected: Sequence[str] | None = None,
        samples: int | None = None,
        prior: BetaMixture | None = None,
        verify_workers: int = 0,
        **kwargs: Any,
    ):
        """
        Args:
            config: what to measure and how.
            sources, choice: the problems.
            purpose: sample, refine or rescore; each draws with seeds of its own.
            selected: uids of the problems wanted; None: all.
            samples: of each problem; default the configuration's.
            prior: of the pass rates, once a pilot is measured; before, only the pilot is.
            verify_workers: processes that check answers; 0: one a core.
        """
        super().__init__(**kwargs)
        self.config, self.sources, self.choice = config, list(sources), choice
        self.purpose, self.selected, self.prior = purpose, selected, prior
        self.samples = samples or config.samples
        self.verify_workers = verify_workers
        self._unverified = 0

    @cached_property
    def problems(self) -> ProblemSet:
        whole = read_set(self.config, self.sources, self.choice)
        if self.selected is None:
            return whole
        wanted = set(self.selected)
        chosen = [problem for problem in whole.problems if problem.uid in wanted]
        return order_problems(chosen, seed=self.config.seed, chunk_problems=self.config.chunk_problems)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.config.model, self.config.model_name)

    @cached_property
    def asker(self) -> Asker:
        return Asker(self.tokenizer, template=self.config.template, form=self.config.form)

    def count_tokens(self, text: str) -> int:
        return self.tokenizer.count([text])[0]

    @cached_property
    def bands(self) -> Bands:
        return parse_bands(self.config.bands)

    @cached_property
    def _stopping(self) -> StoppingRule | None:
        config = self.config
        if self.purpose != SAMPLE or config.confidence is None or (config.needs_prior and self.prior is None):
            return None
        return stopping_rule(self.bands, config.samples, config.confidence, self.prior)

    def rule(self, chunk: int) -> StoppingRule | None:
        """When problems of a chunk stop early; the pilot's never do."""
        return None if self.purpose == SAMPLE and chunk < self.problems.pilot_chunks else self._stopping

    # Which units.

    def missing(self, ledger: Ledger) -> list[Unit]:
        sizes = chunk_sizes(self.problems)
        if self.purpose == SAMPLE and self.config.needs_prior and self.prior is None:
            sizes = sizes[: self.problems.pilot_chunks]
        committed, started = self._by_chunk(ledger.committed()), self._by_chunk(ledger.started())
        return [
            unit
            for chunk, size in enumerate(sizes)
            for unit in missing(
                committed.get(chunk, []),
                chunk=chunk,
                documents=size,
                kinds=(self.purpose,),
                rewrites=self.samples,
                started=started.get(chunk, []),
            )
        ]

    def _by_chunk(self, units: Iterable[Unit]) -> dict[int, list[Unit]]:
        found: dict[int, list[Unit]] = {}
        for unit in units:
            if unit.kinds == (self.purpose,):
                found.setdefault(unit.chunk, []).append(unit)
        return found

    def finish_decided(self, ledger: Ledger) -> None:
        for unit, decision in ledger.decisions().items():
            if unit.kinds == (self.purpose,):
                self.commit(ledger, unit, decision)

    def load(self, unit: Unit) -> Sequence[Problem]:
        return self.problems.chunk(unit.chunk)[unit.first : unit.stop]

    # What is asked.

    def plan(self, unit: Unit, items: Sequence[Problem], first: int) -> list[Planned]:
        """One a problem: its prompt, or why it can't be asked."""
        return [self._plan_problem(problem, position) for position, problem in enumerate(items, first)]

    def _plan_problem(self, problem: Problem, position: int) -> Planned:
        planned = Planned(key=f"{problem.uid}/{self.purpose}", position=position, info={"uid": problem.uid})
        reason, detail = problem.unscored, None
        if reason is None:
            try:
                prompt, tokens = self.asker.prompt(self.config.asked(problem).prompt)
            except UserError as error:
                reason, detail = "prompt_refused", error.line
            else:
                room = self.config.context - self.config.max_tokens
                if tokens <= room:
                    planned.prompt, planned.prompt_tokens = prompt, tokens
                    return planned
                reason = "prompt_too_long"
                detail = f"{tokens} tokens where {room} fit beside {self.config.max_tokens} new ones"
        planned.outcome = {"outcome": "skipped", "reason": reason, "detail": detail}
        return planned

    async def _work(self, rank: int, world_size: int) -> None:
        self._ready: deque[Rolling] = deque()
        self._open = 0
        limits = WorkerLimits(workers=self.verify_workers)
        with (
            Verifier(answers=self.config.answers, plugin=self.config.verifier, limits=limits) as self._verifier,
            ThreadPoolExecutor(1) as self._starter,
        ):
            await super()._work(rank, world_size)

    async def _feed(self, rank: int, world_size: int) -> AsyncIterator[Request]:
        # The next sample of a problem that is begun comes before a new problem: its prefix is in the cache.
        coming = self._problems(rank, world_size)
        more = True
        while not leaving():
            while self._ready and self._unverified < MOST_UNVERIFIED and not leaving():
                rolling = self._ready.popleft()
                rolling.queued = False
                if rolling.may_send:
                    request = self._request(rolling)
                    self._queue(rolling)
                    yield request
            if more and self._unverified < MOST_UNVERIFIED:
                rolling = await anext(coming, None)
                if rolling is None:
                    more = False
                else:
                    self._queue(rolling)
            elif not self._open and not self._ready:
                return
            elif not self._ready or self._unverified >= MOST_UNVERIFIED:
                self._changed.clear()
                await self._changed.wait()

    async def _problems(self, rank: int, world_size: int) -> AsyncIterator[Rolling]:
        """The problems that still need samples, unit by unit; what the journal holds of them is counted already."""
        async for run, items in self._opened(rank, world_size):
            unit = run.unit
            async for position, batch in self._planned(unit, items):
                for planned in batch:
                    rolling = self._begin(run, planned, items[position - unit.first])
                    if rolling is not None:
                        yield rolling
                run.fed = position + 1
            self._fed(run)

    def _begin(self, run: UnitRun, planned: Planned, problem: Problem) -> Rolling | None:
        if planned.outcome is not None:
            run.plan(planned)
            record = run.found.pop(planned.key, None)
            known = {"key": planned.key, "tokens": 0, **planned.outcome}
            self._settle(run, planned, record or known, journalled=record is not None)
            self.progress.add("problems")
            self.progress.add(f"band:{UNSCORED}")
            return None
        rolling = Rolling(run, planned, problem, self.rule(run.unit.chunk))
        run.hold(planned.position)
        self._open += 1
        for sample in list(rolling.left):
            record = run.found.pop(f"{planned.key}/{sample}", None)
            if record is not None:
                rolling.left.remove(sample)
                run.plan(planned)
                rolling.tally.verdicts[record["verdict"]] += 1
                self._settle(run, planned, record, journalled=True)
                self.progress.add(f"verdict:{record['verdict']}")
                self.progress.add("journalled")
        if not rolling.finished:
            return rolling
        self._end(rolling)
        return None

    def _queue(self, rolling: Rolling) -> None:
        if not rolling.queued and rolling.may_send:
            rolling.queued = True
            self._ready.append(rolling)

    def _request(self, rolling: Rolling) -> Request:
        sample = rolling.left.popleft()
        rolling.in_flight += 1
        rolling.run.plan(rolling.planned)
        return Request(
            key=f"{rolling.planned.key}/{sample}",
            prompt=rolling.planned.prompt,
            sampling=self.config.sampling,
            seed=request_seed(self.config.seed, rolling.problem.uid, self.purpose, sample, 0),
            tag=(rolling, sample),
            group=rolling.problem.uid,
            prompt_tokens=rolling.planned.prompt_tokens,
        )

    # What comes back.

    def _on_done(self, request: Request, result: Completion | Failure) -> None:
        self._hear(result)
        self.progress.add("answered")
        if isinstance(result, Failure):
            failed = {
                "verdict": "request_failed",
                "reason": "request_failed",
                "detail": f"{result.reason}: {result.detail}",
                "text": "",
                "truncated": None,
            }
            self._sampled(request, failed)
        else:
            self._unverified += 1
            self._tasks.create_task(self._verify(request, result))

    async def _verify(self, request: Request, completion: Completion) -> None:
        rolling, _ = request.tag
        for _ in range(VERIFIER_TRIES):
            verdict = await self._check(rolling, completion.text)
            if verdict.verdict != "verifier_error":
                break
        self._unverified -= 1
        self._sampled(
            request,
            {
                "verdict": verdict.verdict,
                "reason": verdict.verdict,
                "answer": verdict.answer,
                "how": verdict.how,
                "decided_by": verdict.by,
                "detail": verdict.detail,
                "text": completion.text,
                "truncated": completion.finish_reason == "length",
                "finish_reason": completion.finish_reason,
                "prompt_tokens": completion.prompt_tokens,
                "completion_tokens": completion.completion_tokens,
            },
        )

    async def _check(self, rolling: Rolling, text: str) -> Verdict:
        verifier, asked = (
            self._verifier,
            partial(self._verifier.submit, rolling.problem.ground_truth, text, form=rolling.form),
        )
        if verifier.pool.must_start:
            # The first answer that comparison can't decide starts the processes, which takes seconds.
            future = await asyncio.get_running_loop().run_in_executor(self._starter, asked)
        else:
            future = asked()
        return future.result() if future.done() else await asyncio.shield(asyncio.wrap_future(future))

    def _sampled(self, request: Request, outcome: dict[str, Any]) -> None:
        rolling, sample = request.tag
        verdict = outcome["verdict"]
        rolling.in_flight -= 1
        rolling.tally.verdicts[verdict] += 1
        kind = "rejected" if verdict in FAILED else "accepted"
        tokens = outcome.get("completion_tokens", 0) if kind == "accepted" else 0
        known = {"key": request.key, "sample": sample, "seed": request.seed, "outcome": kind, "tokens": tokens}
        self.progress.add(f"verdict:{verdict}")
        self._settle(rolling.run, rolling.planned, {**known, **outcome})
        if rolling.finished:
            self._end(rolling)
        else:
            self._queue(rolling)

    def _end(self, rolling: Rolling) -> None:
        self._open -= 1
        self.progress.add("problems")
        self.progress.add(f"band:{rolling.tally.label(self.bands, rolling.rule) or UNSCORED}")
        rolling.run.release(rolling.planned.position)
        self._maybe_finish(rolling.run)

    def judge(self, planned: Planned, completion: Completion) -> dict[str, Any]:
        raise NotImplementedError("answers are judged beside the event loop: see _verify")

    # What is committed.

    def part(
        self, unit: Unit, items: Sequence[Problem], records: list[dict[str, Any]], outside: int, scratch: Path
    ) -> Part:
        built = ScoredPart(self.config, self.purpose, self.bands, self.rule(unit.chunk), unit, items, scratch)
        for record in sorted(records, key=lambda record: (record["position"], record.get("sample", -1))):
            built.add(record)
        return built.close()

    def emit(self, part: Part) -> Iterable[Any]:
        """The unit's problems, for the steps that follow: the question as text, what was measured as metadata."""
        from datatrove.data import Document

        questions = {problem.uid: problem.question for problem in self.problems.problems}
        for row in part.tables[TABLES[self.purpose]].to_pylist():
            yield Document(text=questions[row["uid"]], id=row["uid"], metadata=row)

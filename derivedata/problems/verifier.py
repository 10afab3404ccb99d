r"""Is this answer right? `derivedata.problems.verify("\\frac{1}{2}", "So it is \\boxed{0.5}.").verdict == "correct"`.

An answer passes three steps, each only where the one before could not tell: extraction (problems/extract.py),
comparison of numbers and strings (problems/compare.py), math-verify or a plug-in in worker processes
(problems/workers.py).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from derivedata.errors import UserError
from derivedata.problems.compare import compare
from derivedata.problems.extract import FORMS, MODES, extract, extractor_name
from derivedata.problems.golds import gold_answers
from derivedata.problems.workers import WorkerLimits, WorkerPool

VERDICTS = ("correct", "wrong", "no_answer", "verifier_timeout", "verifier_error")
_REMEMBERED = 20_000
_WINDOW = 20_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of checking one response."""

    verdict: str  # one of VERDICTS
    answer: str | None = None  # the extracted answer
    how: str | None = None  # boxed, hashes, stated, whole, number, text: where it was found
    by: str | None = None  # string, number, unit, form, length, math-verify, or the plug-in: what decided
    detail: str | None = None  # why there is no verdict

    @property
    def correct(self) -> bool:
        """Whether the answer is right; everything that isn't known to be right is not."""
        return self.verdict == "correct"


class Verifier:
    """Checks responses against gold answers; processes start when the first answer needs one.

    Args:
        answers: how the answer is found: strict, lenient, last-number or math-verify.
        plugin: `module:function` called as `function(gold, response)` in the worker processes instead of all that; it
            returns True or False (or 1 or 0), None for no answer, or a verdict's name. Its module is imported once.
        limits: what one answer may cost.
    """

    def __init__(
        self, *, answers: str = "lenient", plugin: str | None = None, limits: WorkerLimits | None = None
    ) -> None:
        if answers not in MODES:
            raise UserError("unknown way to find answers", value=answers, remedy=f"use one of {', '.join(MODES)}")
        self.answers, self.plugin = answers, plugin
        self.pool = WorkerPool(limits or WorkerLimits(), plugin=plugin, math_verify=plugin is None)
        self._known: OrderedDict[tuple, concurrent.futures.Future] = OrderedDict()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        self.pool.close()

    @property
    def name(self) -> str:
        """Extractor and verifier with their versions, as they are written beside results."""
        if self.plugin:
            return self.plugin
        from importlib.metadata import PackageNotFoundError, version

        try:
            return f"{extractor_name(self.answers)}+math-verify/{version('math-verify')}"
        except PackageNotFoundError:
            return extractor_name(self.answers)

    def submit(self, gold: object, response: str, *, form: str = "boxed") -> concurrent.futures.Future[Verdict]:
        """Check a response; the future is done already where comparison decides.

        Args:
            gold: the gold answer: a string, a number, or several of them (one is enough, and so are all together).
            response: the model's text, or a bare answer.
            form: the form that the prompt demands, for strict answers.

        Raises:
            UserError: there is no gold answer, or the verifier can't be started.
        """
        golds = gold_answers(gold)
        if not golds:
            raise UserError("there is no gold answer to compare with", value=gold)
        if form not in FORMS:
            raise UserError("unknown form of answers", value=form, remedy=f"use one of {', '.join(FORMS)}")
        if self.plugin:
            return self._in_worker("plugin", golds, response, None, None)
        if len(golds) > 1:
            golds = (*golds, ", ".join(golds))
        found = extract(response, self.answers, form)
        if found.answer is None:
            if found.text is None:
                return _done(Verdict("no_answer"))
            return self._in_worker("text", golds, found.text, None, "text")
        undecided = []
        by = None
        for one in golds:
            outcome = compare(one, found.answer)
            if outcome.equal:
                return _done(Verdict("correct", found.answer, found.how, outcome.by))
            if outcome.equal is None:
                undecided.append(one)
            else:
                by = outcome.by
        if not undecided:
            return _done(Verdict("wrong", found.answer, found.how, by))
        return self._in_worker("answer", tuple(undecided), found.answer, found.answer, found.how)

    def _in_worker(self, kind: str, golds: tuple[str, ...], text: str, answer: str | None, how: str | None):
        """Check in a worker. The 16 samples of a problem often end in the same answer, which is checked once."""
        key = (kind, golds, text, how)
        if kind != "plugin" and (known := self._known.get(key)) is not None:
            return known
        future: concurrent.futures.Future[Verdict] = concurrent.futures.Future()
        inner = self.pool.submit(kind, list(golds), text)
        if kind != "plugin":
            self._known[key] = future
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

        def finish(done: concurrent.futures.Future) -> None:
            if done.exception() is not None:
                self._known.pop(key, None)
                future.set_exception(done.exception())
                return
            verdict, found, detail = done.result()
            if verdict in ("verifier_timeout", "verifier_error"):
                # Asked again, it is tried again: the next time the machine may be less busy.
                self._known.pop(key, None)
            by = self.plugin or "math-verify"
            future.set_result(Verdict(verdict, answer if answer is not None else found, how, by, detail))

        inner.add_done_callback(finish)
        return future

    def verify(self, gold: object, response: str, *, form: str = "boxed") -> Verdict:
        """Check one response and wait for the verdict (arguments as in `submit`)."""
        return self.submit(gold, response, form=form).result()

    async def verify_async(self, gold: object, response: str, *, form: str = "boxed") -> Verdict:
        """Check one response without blocking the event loop (arguments as in `submit`)."""
        if self.pool.must_start:
            # Importing math-verify takes seconds; the event loop goes on meanwhile.
            await asyncio.to_thread(self.pool.start)
        future = self.submit(gold, response, form=form)
        return future.result() if future.done() else await asyncio.shield(asyncio.wrap_future(future))

    def verify_many(self, pairs: Iterable[tuple[object, str]], *, form: str = "boxed") -> Iterator[Verdict]:
        """Check (gold, response) pairs in parallel; verdicts come in the order of the pairs, lazily."""
        pending: deque[concurrent.futures.Future[Verdict]] = deque()
        for gold, response in pairs:
            pending.append(self.submit(gold, response, form=form))
            while pending and (pending[0].done() or len(pending) >= _WINDOW):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _done(verdict: Verdict) -> concurrent.futures.Future[Verdict]:
    future: concurrent.futures.Future[Verdict] = concurrent.futures.Future()
    future.set_result(verdict)
    return future


_shared: dict[tuple[int, str], Verifier] = {}


def verify(gold: object, answer: str, *, answers: str = "lenient", form: str = "boxed") -> Verdict:
    """Check one response (or bare answer) with a verifier that this process keeps for all such calls.

    Args:
        gold: the gold answer: a string, a number, or several of them.
        answer: the model's text, or a bare answer.
        answers: how the answer is found: strict, lenient, last-number or math-verify.
        form: the demanded form (boxed or hashes), for strict.
    """
    # A forked child must not share its parent's sockets, so the process is part of the key.
    key = (os.getpid(), answers)
    if key not in _shared:
        _shared[key] = Verifier(answers=answers, limits=WorkerLimits(workers=1))
        atexit.register(_shared[key].close)
    return _shared[key].verify(gold, answer, form=form)

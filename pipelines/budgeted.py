"""A derivation that may stop at a budget of tokens: when to ask for more, where to cut, what to commit."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

from derivedata.pipelines.budget import Budget, ChunkTokens, cut
from derivedata.pipelines.derivation import DerivationStage, UnitRun
from derivedata.pipelines.source import Chunk, Source
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.units import Unit


class BudgetedStage(DerivationStage):
    """Stops feeding where the budget is expected to be met, and commits up to where it is met."""

    source: Source
    tokens_wanted: int | None  # accepted derived tokens; None: all of the source

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._learned: dict[Unit, tuple[int, int]] = {}  # how much of each unit the guess has seen

    @abstractmethod
    def usable(self, chunk: Chunk) -> int:
        """How many documents of a chunk the run may use."""

    @abstractmethod
    def expected_tokens(self) -> float:
        """A guess of the accepted tokens a document, before anything is known."""

    def open_budget(self, ledger: Ledger) -> Budget:
        """What the output holds and what is decided, chunk by chunk in the seeded order."""
        chunks = [ChunkTokens(documents=self.usable(chunk)) for chunk in self.source.chunks]
        # Without a budget nobody asks for tokens, and of a large output it takes a while to say them.
        committed = {} if self.tokens_wanted is None else Manifest(self.folder).tokens_by_unit()
        for unit in ledger.committed():
            chunk = chunks[unit.chunk]
            chunk.tokens += committed.get(unit) or 0
            chunk.frontier = max(chunk.frontier, unit.stop)
        for unit, decision in ledger.decisions().items():
            chunk = chunks[unit.chunk]
            if unit.first == chunk.frontier and unit.stop >= chunk.documents == decision.totals["fed"]:
                chunk.decided = decision.totals["tokens"]
        return Budget(target=self.tokens_wanted or 0, chunks=chunks, mean=self.expected_tokens())

    def grows(self, unit: Unit) -> bool:
        """Whether a unit goes on where the committed documents end; the others fill in styles or rewrites."""
        return self.tokens_wanted is not None and unit.first >= self.budget.chunks[unit.chunk].frontier

    def admit(self, run: UnitRun) -> bool | None:
        if not self.grows(run.unit):
            return True
        chunk = run.unit.chunk
        others = [other for other in self._runs if other is not run and self.grows(other.unit)]
        mine = {other.unit.chunk: self._expected(other) for other in others}
        before = self.budget.expected_before(chunk, mine) + self.budget.chunks[chunk].tokens
        if before + self._expected(run) < self.budget.target:
            return True
        if run.open or any(other.unit.chunk < chunk for other in others):
            return None  # the guess may be too high: look again when more is finished
        return False

    def _expected(self, run: UnitRun) -> float:
        """Tokens of a unit on its way: those of its finished prefix, and a guess for what is in flight behind it."""
        tokens, end = run.prefix_tokens()
        documents_before, tokens_before = self._learned.get(run.unit, (run.unit.first, 0))
        self.budget.learn(end - documents_before, tokens - tokens_before)
        self._learned[run.unit] = (end, tokens)
        return tokens + self.budget.rate * (run.fed - end)

    def finish(self, ledger: Ledger, run: UnitRun) -> None:
        if not self.grows(run.unit):
            super().finish(ledger, run)
            return
        if run.fed == run.unit.first:
            return
        tokens = sum(run.tokens.values())
        before = self.budget.before(run.unit.chunk)
        held = self.budget.chunks[run.unit.chunk].tokens
        if run.fed < run.unit.stop and (before is None or before + held + tokens < self.budget.target):
            return  # ended on a guess about chunks of other ranks; the journal keeps it for the next pass
        if self.decide(ledger, run) is not None:
            self.budget.chunks[run.unit.chunk].decided = tokens
        self.settle(ledger)

    def finish_decided(self, ledger: Ledger) -> None:
        if self.tokens_wanted is None:
            super().finish_decided(ledger)
            return
        self.budget = self.open_budget(ledger)
        for unit, decision in ledger.decisions().items():
            if not self.grows(unit):
                self.commit(ledger, unit, decision)
        self.settle(ledger)

    def settle(self, ledger: Ledger) -> bool:
        """Commit, in order, the decided units whose predecessors are known.

        Returns:
            Whether the budget is met, or nothing is left to meet it with.
        """
        decisions = {unit.chunk: (unit, one) for unit, one in ledger.decisions().items() if self._goes_on(unit)}
        total = 0
        for index, chunk in enumerate(self.budget.chunks):
            total += chunk.tokens
            if total >= self.budget.target:
                return True
            if chunk.frontier >= chunk.documents:
                continue
            if index not in decisions:
                return False
            total += self._commit_within(ledger, *decisions[index], self.budget.target - total)
            if total < self.budget.target and chunk.frontier < chunk.documents:
                return False  # the rest of this chunk comes before anything of the next
        return True

    def _goes_on(self, unit: Unit) -> bool:
        """Whether a unit begins exactly where its chunk's committed documents end."""
        return self.grows(unit) and unit.first == self.budget.chunks[unit.chunk].frontier

    def _commit_within(self, ledger: Ledger, worked: Unit, decision, missing: int) -> int:
        """Commit a decided unit up to where `missing` tokens are reached; the tokens it gave."""
        records = [(record["position"], record["tokens"]) for record in ledger.records(decision)]
        stop = cut(records, first=worked.first, stop=worked.stop, missing=missing) or decision.totals["fed"]
        unit = replace(worked, stop=stop)
        self.commit(ledger, unit, decision)
        chunk = self.budget.chunks[worked.chunk]
        given = sum(tokens for position, tokens in records if position < stop)
        chunk.tokens, chunk.frontier, chunk.decided = chunk.tokens + given, stop, None
        return given

"""What a repair needs to know of the job that made an output: how units are made again, and what of them is sound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.generation.model import ModelFolder, resolve_model
from derivedata.pipelines.derivation import DerivationStage
from derivedata.pipelines.salvage import Witness
from derivedata.pipelines.serving import Serve, Serving
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.runs import RunRecord
from derivedata.store.units import Unit
from derivedata.store.withdraw import Belongs


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What the user says of a repair; empty: as the run record has it."""

    source: Sequence[str] = ()  # where the input is now
    styles: Sequence[str] = ()  # files of styles that are not shipped
    model: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Salvaged:
    """What is left of a unit: the outcomes that are sound, of how many keys it must have (None: not known before)."""

    records: Sequence[dict[str, Any]]
    keys: int | None

    @property
    def complete(self) -> bool:
        return len(self.records) == self.keys


class OnlyUnits:
    """Mixed into a stage, before it: makes the units it is given, and nothing else."""

    units: Sequence[Unit]

    def missing(self, ledger: Ledger) -> list[Unit]:
        committed = ledger.committed_names()
        return [unit for unit in sorted(self.units) if unit.name not in committed]

    def finish_decided(self, ledger: Ledger) -> None:
        wanted = set(self.units)
        for unit, decision in ledger.decisions().items():
            if unit in wanted:
                self.commit(ledger, unit, decision)


class RepairJob(ABC):
    """One job's side of a repair."""

    def __init__(self, folder: Folder, record: RunRecord, given: Given, run_id: str):
        self.folder, self.record, self.given, self.run_id = folder, record, given, run_id
        self.identity: Mapping[str, Any] = record.identity
        self.extent: Mapping[str, Any] = record.config.extent
        self.execution: Mapping[str, Any] = record.config.execution

    # What a subclass says.

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, str]:
        """Parts of the input: name -> path of the file they are of."""

    @abstractmethod
    def salvage(self, witness: Witness, unit: Unit, paths: Sequence[str]) -> Salvaged:
        """What of a unit is sound; `paths` are its files that are there. Raises UserError when the source changed."""

    @abstractmethod
    def belongs(self, witness: Witness, units: Collection[Unit], inputs: Collection[str]) -> Belongs:
        """Which index rows are those of the units (all of them salvaged before) and of the parts of the input."""

    @abstractmethod
    def stages(
        self, units: Sequence[Unit], outside: Mapping[str, int], endpoint_file: str, window: int
    ) -> list[DerivationStage]:
        """The stages that make these units, one after the other. outside: requests beyond the budget, by unit."""

    @abstractmethod
    def count_input(self, names: Collection[str] | None) -> None:
        """Commit parts of the input again; None: all that are missing, and the inventory."""

    @abstractmethod
    def serving(self, private: Path, listener: Any) -> Serving:
        """What a server is started for."""

    @abstractmethod
    def go_on(self, serve: Serve, listener: Any) -> None:
        """Run the job again as it was last asked for: it makes what is missing of it."""

    @abstractmethod
    def close(self) -> None:
        """What a finished job writes after its last unit: the card, files that sum up."""

    # What all share.

    def model(self) -> ModelFolder:
        """The model of the run. Raises UserError when it is not to be had, or another one now."""
        name, folder = self.identity["model"], self.execution.get("model_folder")
        revision = self.identity["model_revision"]
        if self.given.model:
            model = resolve_model(self.given.model)
        elif folder and revision.startswith("folder-sha256:") and Path(folder).is_dir():
            model = resolve_model(folder)
        else:
            model = resolve_model(f"{name}@{revision}" if "/" in name else name)
        if model.revision != revision:
            raise UserError(
                f"is not the model that the output was made with ({name}, {revision})",
                where=model.path,
                value=model.revision,
                remedy="name it with --model",
            )
        return model


def outside_of(books: Mapping[str, Books], told: Books | None, names: Sequence[str], stage: str) -> dict[str, int]:
    """Requests beyond the budget, by unit, of those that are made again.

    Args:
        books: of each unit, where they can be read and balance.
        told: the books of the stage in the last record of a run that ended.
        names: the units.
        stage: whose books.
    """
    found = {name: sum(books[name].outside.values()) for name in names if name in books}
    unknown = sorted(name for name in names if name not in books)
    if unknown and told is not None:
        rest = sum(told.outside.values()) - sum(found.values())
        found[unknown[-1]] = max(0, rest)  # a budget is met in one unit, the last one
    return {name: count for name, count in found.items() if count}

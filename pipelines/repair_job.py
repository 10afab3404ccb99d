"""What a repair needs to know of the job that made an output: how units are made again, and what of them is sound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.generation.connect import Connection
from derivedata.generation.request import Sampling
from derivedata.pipelines.derivation import DerivationStage
from derivedata.pipelines.job import Model, ModelOptions, at_endpoints, find_model
from derivedata.pipelines.salvage import Witness
from derivedata.pipelines.serving import Listener, Serve, Serving, own_server
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
    endpoints: Sequence[str] = ()  # servers that run already


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

    options: ModelOptions
    config: Any
    model: Model
    connection: Connection | None

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
    def go_on(self, serve: Serve | None, listener: Listener) -> None:
        """Run the job again as it was last asked for: it makes what is missing of it."""

    @abstractmethod
    def close(self) -> None:
        """What a finished job writes after its last unit: the card, files that sum up."""

    # What all share.

    @property
    def model_options(self) -> dict[str, Any]:
        """Options of the model and its servers, as the run had them or as they are given now."""
        execution, name, revision = self.execution, self.identity["model"], self.identity["model_revision"]
        folder = execution.get("model_folder")
        shared = {"context": self.identity["context"], "seed": self.identity["seed"]}
        endpoints = tuple(self.given.endpoints) or tuple(execution.get("endpoints") or ())
        if endpoints:
            return {**shared, "endpoints": endpoints, "model": name, "tokenizer": folder}
        if self.given.model:
            model = self.given.model
        elif folder and str(revision).startswith("folder-sha256:") and Path(folder).is_dir():
            model = folder
        else:
            model = f"{name}@{revision}" if "/" in name else name
        return {
            **shared,
            "model": model,
            "tensor_parallel": execution.get("tensor_parallel") or 1,
            "data_parallel": execution.get("data_parallel"),
            "max_num_seqs": execution.get("max_num_seqs"),
            "vllm_args": tuple((key, value) for key, value in execution.get("vllm_args") or ()),
        }

    def find(self, options: ModelOptions, samplings: Sequence[Sampling], *, plain: bool | None = None) -> None:
        """Settle model and servers. Raises UserError when the model is not to be had, or another one now."""
        self.model, self.connection = find_model(options, samplings, plain=plain)
        told = {"model_revision": self.model.revision, **(self.connection.identity if self.connection else {})}
        for name, value in told.items():
            if self.identity.get(name) != value:
                raise UserError(
                    f"is not what the output was made with: {name} was {self.identity.get(name)}",
                    where=self.model.path,
                    value=value,
                    remedy="name it with --model or --endpoint",
                )

    def serve(self, serve: Serve | None) -> Serve:
        """How to come to a server, unless that is given."""
        return serve or (at_endpoints(self.connection) if self.connection else own_server)

    def serving(self, private: Path, listener: Listener) -> Serving:
        """What a server is started for."""
        return Serving(
            model=self.model,
            settings=self.options.server_settings(self.config.context),
            private=private,
            log=Path(self.folder.url_of(f"logs/{self.run_id}") if self.folder.is_local else private) / "vllm.log",
            listener=listener,
        )


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

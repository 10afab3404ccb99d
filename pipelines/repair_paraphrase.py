"""Paraphrase's side of `verify --repair`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from derivedata.corpus.card import dataset_card
from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile, corpus_files
from derivedata.errors import UserError
from derivedata.generation.style import Style, load_style, load_styles
from derivedata.pipelines.damage import part_of
from derivedata.pipelines.derivation import PREPARE, Planned
from derivedata.pipelines.derived import GENERATION, REJECTED_FIELDS
from derivedata.pipelines.paraphrase import ParaphraseConfig, ParaphraseStage
from derivedata.pipelines.paraphrase_options import ParaphraseOptions, resolve_config
from derivedata.pipelines.repair_job import Given, OnlyUnits, RepairJob, Salvaged
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.salvage import Witness, read_lines, refuse_other_making, sound_documents
from derivedata.pipelines.serving import ENDPOINT, Listener, Serve, check_output
from derivedata.pipelines.source import INPUT, INVENTORY, TakeInventory, close_inventory
from derivedata.pipelines.verify_rejects import FIELDS
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import RunRecord
from derivedata.store.tables import Part
from derivedata.store.units import Unit
from derivedata.store.withdraw import Belongs


class ParaphraseAgain(OnlyUnits, ParaphraseStage):
    """Makes units of a paraphrase again; how far they reach was settled when they were first committed."""

    def __init__(self, *, units: Sequence[Unit], outside: Mapping[str, int], **kwargs: Any):
        super().__init__(**kwargs)
        self.units, self.outside = list(units), dict(outside)

    def part(
        self, unit: Unit, items: Sequence[Document], records: list[dict[str, Any]], outside: int, scratch: Path
    ) -> Part:
        return super().part(unit, items, records, outside + self.outside.get(unit.name, 0), scratch)


class ParaphraseRepair(RepairJob):
    """See RepairJob."""

    def __init__(self, folder: Folder, record: RunRecord, given: Given, run_id: str):
        super().__init__(folder, record, given, run_id)
        self.uids: dict[Unit, list[str]] = {}

    @cached_property
    def files(self) -> list[CorpusFile]:
        files = corpus_files(list(self.given.source) or list(self.extent["corpus"]))
        inside = check_output(self.folder, "paraphrase", [file.url for file in files])
        return [file for file in files if file.url not in inside]

    @cached_property
    def inputs(self) -> Mapping[str, str]:
        return {f"{INPUT}-{hashlib.sha256(_bytes(file.path)).hexdigest()[:32]}": file.path for file in self.files}

    @cached_property
    def styles(self) -> tuple[Style, ...]:
        """The styles of the output, each as it was when it was used."""
        made: Mapping[str, str] = self.identity["styles"]
        names = list(self.identity["style_mix"] or made)
        own = {load_style(path).name: path for path in self.given.styles}
        try:
            styles = load_styles([own.get(name, name) for name in names])
        except UserError as error:
            raise UserError(error.what, value=error.value, remedy="name the file of the style with --style") from error
        for style in styles.values():
            if style.sha256 != made[style.name]:
                raise UserError(
                    f"style {style.name} is not what it was when the output was made",
                    where=style.path,
                    remedy="name the file as it was with --style",
                )
        return tuple(styles.values())

    @cached_property
    def options(self) -> ParaphraseOptions:
        identity, shared = self.identity, self.model_options
        if identity["counted_with"] != identity["model"]:
            shared["tokenizer"] = self.execution.get("tokenizer_folder") or identity["counted_with"]
        return ParaphraseOptions(
            corpus=tuple(self.given.source) or tuple(self.extent["corpus"]),
            output=self.folder.url,
            styles=tuple(str(style.path) for style in self.styles),
            style_mix=identity["style_mix"],
            rewrites=self.extent["rewrites"],
            temperature=identity["temperature"],
            top_p=identity["top_p"],
            max_tokens=identity["max_new"],
            filter=identity["filter"],
            format=identity["format"],
            chunk_bytes=identity["chunk_bytes"],
            **shared,
        )

    @cached_property
    def config(self) -> ParaphraseConfig:
        self.find(self.options, self.options.samplings())
        config = resolve_config(
            self.options, self.model, self.styles, added=self.identity["added"], connection=self.connection
        )
        if config.tokenizer_name != self.identity["counted_with"]:
            raise UserError(
                "is not the tokenizer that the output was counted with",
                where=config.tokenizer,
                value=config.tokenizer_name,
                remedy=f"put {self.identity['counted_with']} back where it was",
            )
        return config

    def stages(
        self, units: Sequence[Unit], outside: Mapping[str, int], endpoint_file: str, window: int
    ) -> list[ParaphraseAgain]:
        return [
            ParaphraseAgain(
                units=units,
                outside=outside,
                config=self.config,
                files=self.files,
                output=self.folder.url,
                endpoint_file=endpoint_file,
                window=window,
                run_id=self.run_id,
            )
        ]

    @cached_property
    def planner(self) -> ParaphraseAgain:
        return self.stages([], {}, ENDPOINT, 1)[0]

    # What is sound.

    def salvage(self, witness: Witness, unit: Unit, paths: Sequence[str]) -> Salvaged:
        stage = self.planner
        items = stage.load(unit)
        self.uids[unit] = [item.uid for item in items]
        shards = [path for path in paths if path.startswith("documents/")]
        documents = sound_documents(witness, unit, shards)
        rejects = self._rejects(witness, unit, [path for path in paths if path.startswith("rejected/")])
        records, keys = [], 0
        for planned in _planned(stage, unit, items):
            keys += 1
            record = self._accepted(planned, documents) or rejects.get(_place(planned.info))
            if planned.outcome is not None:
                record = {"tokens": 0, **planned.outcome, "run_id": self.run_id}
            if record is not None:
                records.append({"key": planned.key, "position": planned.position, **planned.info, **record})
        accepted = [record for record in records if record["outcome"] == "accepted"]
        counts = stage.counter.count([record["text"] for record in accepted])
        for record, tokens in zip(accepted, counts, strict=True):
            record["tokens"] = tokens
        return Salvaged(records=records, keys=keys)

    def _accepted(
        self, planned: Planned, documents: Mapping[str, tuple[Document, str | None]]
    ) -> dict[str, Any] | None:
        info = planned.info
        name = f"{info['uid']}-{info['kind']}-{info['rewrite']}-{info['piece']}"
        if planned.outcome is not None or name not in documents:
            return None
        document, url = documents[name]
        derivation = (document.metadata or {}).get("derivedata")
        derivation = derivation if isinstance(derivation, dict) else {}
        style = self.planner.styles[info["style"]]
        for what, expected in (("seed", planned.seed), ("style_sha256", style.sha256)):
            if derivation.get(what) != expected:
                if url is not None:
                    refuse_other_making(url, what, derivation.get(what), expected)
                return None
        told = ("finish_reason", "prompt_tokens", "completion_tokens", "prompt_sha256", "run_id")
        kept = {name: derivation.get(name) for name in told}
        return {**kept, "seed": planned.seed, "changes": [], "outcome": "accepted", "text": document.text}

    def _rejects(self, witness: Witness, unit: Unit, paths: Sequence[str]) -> dict[tuple, dict[str, Any]]:
        """Rejected generations by their place, where file and index agree on them."""
        import pyarrow.compute as pc

        columns = FIELDS[GENERATION]
        where = (pc.field("stage") == GENERATION) & pc.field("source_uid").isin(self.uids[unit])
        indexed = witness.rows("rejected", unit.name, where)
        known = None if indexed is None else {tuple(row[column] for column in columns) for row in indexed}
        found = {}
        for path in paths:
            whole = witness.is_whole(path)
            if whole is False or (whole is None and known is None):
                continue
            for row in read_lines(self.folder, path):
                if known is None or tuple(row.get(name) for name in columns.values()) in known:
                    kept = {name: row.get(name) for name in REJECTED_FIELDS}
                    found[_place(row)] = {**kept, "outcome": "rejected", "text": row.get("text", ""), "tokens": 0}
        return found

    def belongs(self, witness: Witness, units: Collection[Unit], inputs: Collection[str]) -> Belongs:
        names = {unit.name for unit in units}
        files = {self.inputs[name] for name in inputs if name in self.inputs}
        sources = Counter(uid for unit in units for uid in self.uids[unit])
        mixed = self.identity["style_mix"] is not None
        boxes: dict[str, list[Unit]] = {}
        for unit in units:
            for uid in self.uids[unit]:
                boxes.setdefault(uid, []).append(unit)

        def rejected(row: Mapping[str, Any]) -> bool:
            if row["stage"] == INPUT:
                return row["path"] in files
            return row["stage"] == GENERATION and any(
                unit.low <= row["rewrite"] < unit.high and (mixed or row["style"] in unit.kinds)
                for unit in boxes.get(row["source_uid"], ())
            )

        def source(uid: str) -> bool:
            sources[uid] -= 1
            return sources[uid] >= 0

        def flags(table: str, rows: pa.Table) -> list[bool]:
            if table == "documents":
                return [part_of(path) in names for path in rows["shard"].to_pylist()]
            if table == "sources":
                return [source(uid) for uid in rows["uid"].to_pylist()]
            if table == "rejected":
                wanted = rows.select(["stage", "path", "source_uid", "rewrite", "style"]).to_pylist()
                return [rejected(row) for row in wanted]
            return [False] * rows.num_rows

        return flags

    # The rest of the output.

    def count_input(self, names: Collection[str] | None) -> None:
        if names is None:
            self.folder.remove(INVENTORY)
        files = [file for file, name in zip(self.files, self.inputs, strict=True) if names is None or name in names]
        self.folder.remove_tree("plan/files")
        step = TakeInventory(files, self.folder.url, chunk_bytes=self.identity["chunk_bytes"], run_id=self.run_id)
        list(step.run())
        if names is None:
            close_inventory(self.folder, self.files)
        self.folder.remove_tree("plan/files")

    def go_on(self, serve: Serve | None, listener: Listener) -> None:
        wanted = {name: style for style in self.styles if (name := style.name) in self.extent["styles"]}
        options = replace(
            self.options,
            styles=tuple(str(style.path) for style in wanted.values()),
            tokens=self.extent["tokens"],
            documents=self.extent["documents"],
        )
        paraphrase_corpus(options, listener, serve=serve)

    def close(self) -> None:
        summary = Manifest(self.folder).summary()
        card = dataset_card(
            name=Path(self.folder.url.rstrip("/")).name,
            styles=summary.styles.to_dicts(),
            format=self.identity["format"],
            model=self.identity["model"],
            tokenizer=self.identity["counted_with"],
        )
        self.folder.replace("README.md", card.encode())


def _planned(stage: ParaphraseStage, unit: Unit, items: Sequence[Document]) -> Iterator[Planned]:
    """All keys of a unit; prompts are made for a few documents at a time."""
    for start in range(0, len(items), PREPARE):
        yield from stage.plan(unit, items[start : start + PREPARE], unit.first + start)


def _place(row: Mapping[str, Any]) -> tuple:
    return row.get("uid"), row.get("style"), row.get("rewrite"), row.get("piece")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

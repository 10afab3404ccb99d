"""Trains the runs of a design and leaves the table that `derivedata eta fit` reads; what `derivedata sweep` does.

A sweep's folder holds run.json, tokens/ (token stores), cells/, rows/ (one file a finished run), and grid.parquet and
runs.parquet over all that is finished. Started again it trains what is missing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.store.fingerprint import RunConfig
from derivedata.store.paths import Folder
from derivedata.store.runs import new_run, open_run, save_run
from derivedata.trainers.cell import Cell, Layout, Run, Settings
from derivedata.trainers.corpus import (
    held_out_store,
    open_corpus,
    scored_store,
    separate_store,
    shared_documents,
    tokenizer_for,
    training_store,
)
from derivedata.trainers.design_table import Asked, read_design
from derivedata.trainers.learner import Recipe
from derivedata.trainers.options import EVAL_TOKENS
from derivedata.trainers.passes import Passes
from derivedata.trainers.pretrain import Quiet
from derivedata.trainers.schedule import default_batch_tokens, default_rate
from derivedata.trainers.sweep_table import judge, read_rows, write_tables
from derivedata.trainers.tokens import FRESH, REPEAT, TokenStore
from derivedata.trainers.vocabulary import TextTokenizer, head_rows
from derivedata.trainers.workers import Workers, machine


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepOptions:
    """What a sweep is asked for.

    design: the table of runs. output: local folder. fresh: places of the fresh corpus. derived: by strategy the place
    of its corpus, `PLACE#STYLE` for one style of it. scored: by name the place of other text, on which every finished
    run is scored. lr, weight_decay: the grids; lr empty: what suits the size.
    batch_tokens: None: by size. sequence_length: None: that of the smallest size. warmup_share: of the steps of one
    epoch of D. data_seed: of the order of which D is a prefix. workers: processes at a time; None: a GPU or core each.
    """

    design: str
    output: str
    fresh: tuple[str, ...]
    derived: Mapping[str, str] = field(default_factory=dict)
    scored: Mapping[str, str] = field(default_factory=dict)
    lr: tuple[float, ...] = ()
    weight_decay: tuple[float, ...] = (0.1,)
    tokenizer: str | None = None
    eval_data: tuple[str, ...] = ()
    holdout: float | None = None
    eval_tokens: int = EVAL_TOKENS
    batch_tokens: int | None = None
    sequence_length: int | None = None
    warmup_share: float = 0.1
    decay: float = 0.2
    recipe: Recipe = field(default_factory=Recipe)
    vocabulary: int | None = None
    data_seed: int = 0
    device: str | None = None
    workers: int | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        if "://" in self.output:
            raise UserError(
                "a sweep works in a local folder", where="-o", value=self.output, remedy="copy it afterwards"
            )
        if bool(self.eval_data) == bool(self.holdout):
            raise UserError("no held-out split, or two", remedy="add --holdout 2%, or --eval with held-out text")
        if not self.weight_decay or min(self.weight_decay) < 0:
            raise UserError("a weight decay is zero or more", where="--weight-decay", value=self.weight_decay)
        if self.lr and not 0 < min(self.lr) <= max(self.lr) < 10:
            raise UserError("a learning rate lies between 0 and 10", where="--lr", value=self.lr)
        if REPEAT in self.derived:
            raise UserError("repeat needs no corpus: it is the fresh one again", where="--derived")


def run_sweep(options: SweepOptions, narrator: Any = None) -> dict[str, Any]:
    """Train what is missing of a design.

    Returns:
        rows (in runs.parquet), runs (all), warnings, failures (by cell, what it said last), and the two paths.

    Raises:
        UserError: a design, corpus or configuration that does not do; see the modules it comes from.
    """
    narrator = narrator or Quiet()
    asked = read_design(options.design)
    runs, folder = Path(options.output).absolute(), Folder(options.output)
    if options.restart:
        for name in ("cells", "rows", "trunks", "tokens", "manifest", "logs"):
            folder.remove_tree(name)
        folder.remove_many(["run.json", "settings.json", "grid.parquet", "runs.parquet"])
    settings, passes, held_out, scored = _settings(options, asked, runs, narrator)
    apart = ("device", "derived", "scored", "batch_blocks")
    identity = {
        **{name: value for name, value in asdict(settings).items() if name not in apart},
        "batch_tokens": options.batch_tokens,
        "fresh": passes.fresh.fingerprint,
        "held_out": held_out.fingerprint,
        # Kinds may be added: what a run of one strategy is does not depend on the others.
        "styles": {name: store.fingerprint for name, store in passes.derived.items()},
        **({"scored": {name: store.fingerprint for name, store in scored.items()}} if scored else {}),
    }
    identity["recipe"] = {k: v for k, v in identity["recipe"].items() if k not in ("micro_batch", "weight_decay")}
    extent = {"design": options.design, "lr": list(options.lr), "weight_decay": list(options.weight_decay)}
    record = open_run(folder, new_run(RunConfig(identity=identity, extent=extent)))
    settings.write(runs)
    cells = plan_cells(asked, options, settings, passes)
    for cell in cells:
        folder.replace(f"cells/{cell.name}.json", json.dumps(cell.to_dict(), indent=1).encode())
    status = "failed"
    try:
        failures = _train(options, runs, folder, cells, settings, passes, narrator)
        status = "failed" if failures else "done"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    finally:
        judged, warnings = judge(read_rows(folder, cells))
        rows = write_tables(folder, judged)
        save_run(folder, record.finished(status))
    return {
        "rows": rows,
        "runs": len(judged),
        "warnings": warnings,
        "failures": failures,
        "table": folder.url_of("runs.parquet"),
        "grid": folder.url_of("grid.parquet"),
    }


def _settings(
    options: SweepOptions, asked: Sequence[Asked], runs: Path, narrator: Any
) -> tuple[Settings, Passes, TokenStore, dict[str, TokenStore]]:
    """Token stores of everything, and what follows from them."""
    stream = open_corpus(options.fresh, options.data_seed)
    tokenizer = tokenizer_for(options.tokenizer, stream)
    narrator.say(f"tokenising with {tokenizer.name}")
    vocabulary = options.vocabulary or head_rows(tokenizer.vocabulary_size)
    if vocabulary < tokenizer.vocabulary_size:
        raise UserError(
            "the model's vocabulary is smaller than the tokenizer's",
            where="--vocab",
            value=vocabulary,
            remedy=f"{tokenizer.name} has {tokenizer.vocabulary_size:,} ids",
        )
    share, seed, place = options.holdout or 0.0, options.data_seed, runs / "tokens"
    fresh = training_store(place / "fresh", stream, tokenizer, share=share, seed=seed, need=None)
    if any(label.strategy != FRESH for label in fresh.labels) or (len(fresh.epochs) and max(fresh.epochs) > 1):
        raise UserError(
            "the fresh corpus holds derived documents", where="--fresh", remedy="name them with --derived NAME=CORPUS"
        )
    if options.eval_data:
        held_out = separate_store(
            place / "held-out", open_corpus(options.eval_data, 0), tokenizer, tokens=options.eval_tokens
        )
    else:
        held_out = held_out_store(
            place / "held-out", stream, tokenizer, share=share, seed=seed, tokens=options.eval_tokens
        )
    derived = {}
    wanted = {one.strategy for one in asked} - {"", REPEAT}
    for name, where in options.derived.items():
        if name in wanted:
            corpus = open_corpus(*_place(where))
            derived[name] = training_store(
                place / f"derived-{name}", corpus, tokenizer, share=share, seed=seed, need=None
            )
            if any(label.strategy == FRESH for label in derived[name].labels):
                raise UserError(
                    "the corpus holds fresh documents",
                    where=f"--derived {name}",
                    value=where,
                    remedy="name what was made from the fresh corpus (of others: derivedata ingest --derived-from)",
                )
    scored = {
        name: _scored(options, place / f"scored-{name}", where, tokenizer, fresh)
        for name, where in options.scored.items()
    }
    length = options.sequence_length or min(one.size.sequence_length for one in asked)
    batch = {}
    for size in {one.size.name: one.size for one in asked}.values():
        tokens = options.batch_tokens or default_batch_tokens(size.count(vocabulary).N)
        batch[size.name] = max(1, round(tokens / length))
    settings = Settings(
        length=length,
        batch_blocks=batch,
        warmup_share=options.warmup_share,
        decay=options.decay,
        eval_tokens=options.eval_tokens,
        recipe=asdict(options.recipe),
        vocabulary=vocabulary,
        device=options.device,
        derived={name: f"tokens/derived-{name}" for name in derived},
        scored={name: f"tokens/scored-{name}" for name in scored},
    )
    return settings, Passes(fresh, derived, length), held_out, scored


def _scored(options: SweepOptions, folder: Path, where: str, tokenizer: TextTokenizer, fresh: TokenStore) -> TokenStore:
    # Shuffled: the first tokens of a corpus of many sources are of all of them.
    place, _, style = _place(where)
    corpus = open_corpus(place, options.data_seed, style)
    share = options.holdout or 0.0
    store = scored_store(folder, corpus, tokenizer, share=share, seed=options.data_seed, tokens=options.eval_tokens)
    if shared := shared_documents(store, fresh):
        raise UserError(
            "text to score on is trained on", where="--score", value=f"{where}: {shared} documents of the fresh corpus"
        )
    return store


def _place(where: str) -> tuple[str, None, str | None]:
    place, _, style = where.partition("#")
    return place, None, style or None


def plan_cells(asked: Sequence[Asked], options: SweepOptions, settings: Settings, passes: Passes) -> list[Cell]:
    """The cells of a design: rows of one N, D, seed and recipe together; dearest first.

    Raises:
        UserError: a D or x that the corpora do not reach, with the row of the design.
    """
    found: dict[tuple, set[Run]] = defaultdict(set)
    for one in asked:
        where = f"{options.design}, row {one.row}"
        prefix = passes.prefix(one.fresh_tokens, where)
        count = passes.count_for(prefix, one.strategy, one.x, where) if one.x > 0 else 0
        rates = (one.lr,) if one.lr else options.lr or (default_rate(one.size.count(settings.vocabulary).N),)
        decays = options.weight_decay if one.weight_decay is None else (one.weight_decay,)
        for lr in rates:
            for decay in decays:
                key = (one.size.name, one.fresh_tokens, one.seed, lr, decay)
                found[key].add(Run(one.strategy, count))
    cells = [
        Cell(
            size=size,
            fresh_tokens=fresh,
            seed=seed,
            lr=lr,
            weight_decay=decay,
            runs=tuple(sorted(runs, key=lambda run: (run.passes, run.strategy))),
        )
        for (size, fresh, seed, lr, decay), runs in found.items()
    ]
    return sorted(cells, key=lambda cell: -_flops(cell, settings, passes, cell.runs))


def _flops(cell: Cell, settings: Settings, passes: Passes, runs: Sequence[Run]) -> float:
    from derivedata.trainers.ladder import LADDER

    return 6.0 * LADDER[cell.size].count(settings.vocabulary).N * _tokens(cell, settings, passes, runs)


def _tokens(cell: Cell, settings: Settings, passes: Passes, runs: Sequence[Run]) -> int:
    layout = Layout(cell, settings, passes)
    return layout.work(runs) * layout.batch * settings.length


def _train(
    options: SweepOptions,
    runs: Path,
    folder: Folder,
    cells: Sequence[Cell],
    settings: Settings,
    passes: Passes,
    narrator: Any,
) -> dict[str, str]:
    """Train what is missing, with progress in FLOPs; what failed, by cell."""
    missing = {cell.name: [run for run in cell.runs if not folder.exists(cell.row_path(run))] for cell in cells}
    waiting = [cell for cell in cells if missing[cell.name]]
    total = sum(len(cell.runs) for cell in cells)
    left = sum(map(len, missing.values()))
    narrator.say(f"{total} runs in {len(cells)} cells, {left} to train")
    if not waiting:
        return {}
    flops = {cell.name: _flops(cell, settings, passes, missing[cell.name]) for cell in waiting}
    steps = {cell.name: max(1, Layout(cell, settings, passes).work(missing[cell.name])) for cell in waiting}
    count, threads, gpus = machine(options.workers, options.device)
    workers = Workers(runs, waiting, count=min(count, len(waiting)), threads=threads, gpus=gpus)

    def look() -> tuple[float, float, str]:
        done = sum(flops[name] * min(1.0, taken / steps[name]) for name, taken in list(workers.steps.items()))
        return done, sum(flops.values()), f"{total - left + workers.done} of {total} runs"

    with narrator.track("sweep", look):
        workers.run()
    return workers.failures

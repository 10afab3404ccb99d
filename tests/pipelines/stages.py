"""Every stage on small data, as a process of its own: python -m tests.pipelines.stages STAGE PLACE OUTPUT TASKS

Inputs are the outputs of other stages under PLACE. Stages with a model start their server themselves, under the real
supervisor; it is the fake one (`python -m tests.pipelines.stages serve ...`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click

from derivedata.cli import main
from derivedata.generation.server import VllmServer
from tests import fake_server
from tests.fake_answers import answer
from tests.fake_text import reply
from tests.pipelines.faults import cut, delete, flip

SERVE = (sys.executable, "-m", "tests.pipelines.stages", "serve", "--tokens-per-second", "900")
MODEL_STAGES = ("paraphrase", "difficulty", "repair")


def ingest(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.ingest import IngestOptions, ingest

    ingest(IngestOptions(sources=(str(place / "raw"),), output=out, chunk_bytes=2_000, tasks=tasks))


def paraphrase(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.run import paraphrase_corpus
    from tests.pipelines.fakes import job

    options = job(place / "raw", Path(out), place / "model", styles=("faq", "table"), chunk_bytes=5_000, tasks=tasks)
    paraphrase_corpus(options)


def difficulty(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.difficulty_run import measure_difficulty
    from tests.pipelines.measuring import measurement

    measure_difficulty(measurement(place / "problems.jsonl", Path(out), place / "model", samples=4, tasks=tasks))


def repeat(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus

    small = {"windows_per_shard": 2, "window_bytes": 3_000, "block_bytes": 1_000, "tokenizer": str(place / "model")}
    repeat_corpus(RepeatOptions(corpus=(str(place / "ingest"),), output=out, epochs=3, tasks=tasks, **small))


def subset(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.subset_run import SubsetOptions, take_subsets

    model, small = str(place / "model"), {"tokens": (1_000, 2_500), "block_bytes": 1_000, "tasks": tasks}
    take_subsets(SubsetOptions(corpus=(str(place / "raw"),), output=out, tokenizer=model, **small))


def mix(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.mix_run import make_mix
    from derivedata.pipelines.mixture import MixOptions

    small = {"window_bytes": 3_000, "windows_per_shard": 2}
    make_mix(MixOptions(spec=str(place / "mix.yaml"), output=out, materialize=True, tasks=tasks, **small))


def tokenize(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.tokenize import TokenizeOptions, tokenize_corpus

    model, corpus = str(place / "model"), (str(place / "repeat"),)
    options = TokenizeOptions(
        corpus=corpus, output=out, tokenizer=model, eos="<|endoftext|>", shard_bytes=2_000, tasks=tasks
    )
    tokenize_corpus(options)


def export(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.export import ExportOptions, export

    export(ExportOptions(corpus=str(place / "paraphrase"), output=out, layout="hub", file_bytes=2_000, tasks=tasks))


def repair(place: Path, out: str, tasks: int) -> None:
    from derivedata.pipelines.repair import repair_corpus

    repair_corpus(out, tasks=tasks, workers=tasks)


STAGES: dict[str, Callable[[Path, str, int], None]] = {
    stage.__name__: stage for stage in (ingest, paraphrase, difficulty, repeat, subset, mix, tokenize, export, repair)
}


def prepare(stage: str, place: Path, out: Path) -> None:
    """Put there what a stage expects at its output: for a repair, an output that is damaged in many places."""
    if stage == "repair":
        shutil.copytree(place / "paraphrase", out)
        for fault in (delete("documents/*/*"), flip("manifest/units/0*"), cut("rejected/0*"), delete("README.md")):
            fault(out)


def either(prompt: str, draw: int) -> str:
    """What the server answers: to a document a rewrite, to a sum its result."""
    return answer(prompt, draw) if "(rate" in prompt else reply(prompt, draw)


@click.command()
@click.argument("stage")
@click.argument("place", type=Path)
@click.argument("output")
@click.argument("tasks", type=int)
def work(stage: str, place: Path, output: str, tasks: int) -> None:
    VllmServer.__init__.__kwdefaults__["program"] = SERVE
    STAGES[stage](place, output, tasks)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        fake_server.main(sys.argv[2:], reply=either)
    else:
        main(sys.argv[1:], work)

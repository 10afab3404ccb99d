"""The trainer beside a bare loop and beside transformers' Trainer, tokens a second: `python -m tests.bench.trainer`.

One model (.44M on a processor, 60M on a GPU), one batch, one data type, one thread. Rounds of the bare loop and of ours
alternate, so that whatever else the machine does falls on both; the ratio is that of the medians. transformers' Trainer
runs between two blocks of the bare loop. Targets: ours >= 0.95 of bare; loading < 2% of a step; the loader >= 3 times
the tokens/s of the fastest model of a sweep.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from derivedata.trainers.course import Course
from derivedata.trainers.heldout import HeldOut
from derivedata.trainers.ladder import LADDER
from derivedata.trainers.learner import Learner, Recipe
from derivedata.trainers.packing import Packed
from derivedata.trainers.ranks import Ranks
from derivedata.trainers.schedule import Schedule
from derivedata.trainers.tokens import Entry, Label, build_store
from derivedata.trainers.vocabulary import ByteTokenizer

ROUNDS, STEPS = 12, 4
RATE = 1e-3


def main() -> None:
    """Print the table."""
    cuda = torch.cuda.is_available()
    device, name, length, batch = ("cuda:0", "60M", 2048, 16) if cuda else ("cpu", ".44M", 256, 16)
    torch.set_num_threads(1)
    recipe = Recipe(precision="bf16" if cuda else "float32", micro_batch=batch)
    with tempfile.TemporaryDirectory() as folder:
        store = _store(Path(folder), 4_000_000)
        packed = Packed(store, length)
        bare = _bare_loop(name, packed, length, batch, recipe, device)
        ours, course = _our_loop(name, packed, length, batch, recipe, device)
        bare(2), ours(2)
        times = [(bare(STEPS), ours(STEPS)) for _ in range(ROUNDS)]
        tokens = STEPS * batch * length
        fast = [tokens / statistics.median(column) for column in zip(*times, strict=True)]
        print(f"{name} on {device}, {batch} blocks of {length}, {recipe.precision}, 1 thread")
        print(f"{'bare forward-backward-step':<44}{fast[0]:>12,.0f} tokens/s")
        print(f"{'derivedata':<44}{fast[1]:>12,.0f} tokens/s   {fast[1] / fast[0]:.3f} of bare (target .95)")
        spent = sum(one for _, one in times)
        share = course.loading / spent
        print(f"{'  of which loading':<44}{share:>12.2%}            (target < 2%)")
        before = bare(3 * STEPS)
        theirs = _transformers_loop(name, packed, length, batch, recipe, device, folder)
        after = bare(3 * STEPS)
        ratio = theirs / (3 * tokens / ((before + after) / 2))
        print(f"{'transformers Trainer':<44}{theirs:>12,.0f} tokens/s   {ratio:.3f} of bare")
        _loader(packed, batch)
        _evaluation(store, length, course)


def _store(folder: Path, size: int):
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"etaoin shrdlu cmfwyp", np.uint8)
    lengths = rng.integers(200, 4000, size // 2100)
    texts = (bytes(rng.choice(letters, n)).decode() for n in lengths)
    found = (Entry(uid=f"{i:032d}", text=text, label=Label("fresh")) for i, text in enumerate(texts))
    return build_store(folder / "tokens", found, ByteTokenizer(), origin="bench")


def _bare_loop(name, packed, length, batch, recipe, device):
    """What anybody would write: the model's own loss, backward, clip, fused AdamW, over the same blocks."""
    torch.manual_seed(0)
    model = LADDER[name].model(257, length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ready = [torch.from_numpy(packed.read(i * batch, batch)).to(device) for i in range(8)]

    def steps(count: int) -> float:
        began = time.perf_counter()
        for i in range(count):
            ids = ready[i % len(ready)]
            with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=recipe.precision == "bf16"):
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
        return time.perf_counter() - began

    return steps


def _our_loop(name, packed, length, batch, recipe, device):
    torch.manual_seed(0)
    learner = Learner(LADDER[name].model(257, length), recipe, Ranks(rank=0, world=1, device=device))
    course = Course(learner, packed, batch)
    schedule = Schedule(kind="wsd", peak=RATE, steps=packed.blocks // batch, warmup=10)

    def steps(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            course.take(schedule, packed.blocks)
        return time.perf_counter() - began

    return steps, course


def _transformers_loop(name, packed, length, batch, recipe, device, folder) -> float:
    """Tokens a second of transformers' Trainer, its first steps left out."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    marks = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            marks.append(time.perf_counter())

    rows = [{"input_ids": ids, "labels": ids} for ids in packed.read(0, 20 * batch)]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=20,
        per_device_train_batch_size=batch,
        learning_rate=RATE,
        bf16=recipe.precision == "bf16",
        optim="adamw_torch_fused",
        use_cpu=device == "cpu",
        logging_steps=10,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    trainer = Trainer(model=LADDER[name].model(257, length), args=arguments, train_dataset=rows, callbacks=[Clock()])
    trainer.train()
    return (len(marks) - 3) * batch * length / (marks[-1] - marks[2])


def _loader(packed, batch) -> None:
    began, blocks = time.perf_counter(), 0
    while time.perf_counter() - began < 1:
        packed.read(blocks % (packed.blocks - batch), batch)
        packed.kinds(blocks % (packed.blocks - batch), batch)
        blocks += batch
    speed = blocks * packed.length / (time.perf_counter() - began)
    print(f"{'loader: read and account':<44}{speed:>12,.0f} tokens/s")


def _evaluation(store, length, course) -> None:
    held = HeldOut(store, length, 65_536)
    began = time.perf_counter()
    held.score(course.learner)
    print(f"{'evaluation':<44}{held.tokens / (time.perf_counter() - began):>12,.0f} tokens/s")


if __name__ == "__main__":
    main()

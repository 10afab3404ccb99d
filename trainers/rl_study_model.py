"""The small world of the RL study: sums, a character model that was taught them badly, and how hard each is for it.

The warm-up shows four ways to answer, each with its letter: a is right, b, c and d are off by 1, -1 and 10 (`a=12`,
`d=22`). The letter makes every way exact, so the model learns to calculate; its pass rate is then its choice among the
ways, which RL can change: sums come right about every other time, differences rarely. Without the letters a small model
cannot tell the errors it is shown from the rule, and what it then lacks is arithmetic, which RL does not teach it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from derivedata.problems.bands import NAMED_BANDS
from derivedata.problems.problem import Problem, problem_uid

CHARACTERS = "0123456789+-=\nabcd"
PAD, END = "<pad>", "<end>"
MAX_TOKENS = 8  # of an answer, its end included
WAYS = {"a=": 0, "b=": 1, "c=": -1, "d=": 10}  # how an answer begins in the warm-up, and how far off it is
# Share of right answers in the warm-up. At temperature 0.6 the model then gets about half and a twentieth right.
RIGHT_SHARE = {"+": 0.4, "-": 0.1}


def sums(count: int, *, seed: int) -> list[Problem]:
    """`count` different sums and differences of numbers below 100 (there are 20,000)."""
    random = np.random.default_rng(seed)
    found: dict[str, int] = {}
    while len(found) < count:
        a, b = (int(value) for value in random.integers(0, 100, 2))
        plus = bool(random.integers(2))
        found[f"{a}{'+' if plus else '-'}{b}="] = a + b if plus else a - b
    return [
        Problem(
            uid=problem_uid("sums", row, question),
            data_source="sums",
            prompt=({"role": "user", "content": question},),
            ability="math",
            ground_truth=str(value),
            layout="made",
            path="sums",
            row=row,
        )
        for row, (question, value) in enumerate(found.items())
    ]


def write_model(folder: Path, *, width: int = 64, layers: int = 2, seed: int = 0) -> Path:
    """A Llama over single characters with random weights, and its tokenizer, as a model folder."""
    import tokenizers
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    names = [PAD, END, *CHARACTERS]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=PAD))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=END, unk_token=PAD, clean_up_tokenization_spaces=False
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=3 * width,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def warm_up(
    folder: Path, problems: Sequence[Problem], *, steps: int, batch: int = 96, peak: float = 3e-3, seed: int = 0
) -> float:
    """Teach the model in `folder` for some steps, save it, and return the last loss (nats a token)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = []
    for problem in problems:
        prompt = tokenizer.encode(problem.question + "\n\n")
        for way, off in WAYS.items():
            answer = tokenizer.encode(f"{way}{int(problem.ground_truth) + off}")
            rows.append((prompt, [*answer, tokenizer.eos_token_id]))
    shares = torch.tensor([RIGHT_SHARE["+" if "+" in problem.question else "-"] for problem in problems])
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, answer) in enumerate(rows):
        # Padded on the left, as generation does it.
        start = width - len(prompt) - len(answer)
        ids[row, start:] = torch.tensor(prompt + answer)
        labels[row, width - len(answer) :] = torch.tensor(answer)
    mask = (ids != tokenizer.pad_token_id).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    loss = torch.tensor(math.nan)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (step + 1) / 50) * (1 - step / steps)
        asked = torch.randint(len(problems), (batch,), generator=generator)
        wrong = torch.rand(batch, generator=generator) >= shares[asked]
        chosen = asked * len(WAYS) + wrong * torch.randint(1, len(WAYS), (batch,), generator=generator)
        positions = (mask[chosen].cumsum(1) - 1).clamp(min=0)
        loss = model(
            input_ids=ids[chosen], attention_mask=mask[chosen], position_ids=positions, labels=labels[chosen]
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return loss.item()


def measure(
    folder: Path, problems: Sequence[Problem], *, k: int = 16, temperature: float = 0.6, seed: int = 0
) -> np.ndarray:
    """Right answers of k samples for each problem, judged by the verifier."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from derivedata.problems.verifier import Verifier
    from derivedata.problems.workers import WorkerLimits

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.manual_seed(seed)
    right = np.zeros(len(problems), int)
    with Verifier(limits=WorkerLimits(workers=1)) as verifier:
        for start in range(0, len(problems), 64):
            part = problems[start : start + 64]
            inputs = tokenizer([problem.question + "\n\n" for problem in part], return_tensors="pt", padding=True)
            inputs.pop("token_type_ids", None)
            made = model.generate(
                **inputs,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                max_new_tokens=MAX_TOKENS,
                num_return_sequences=k,
                pad_token_id=tokenizer.pad_token_id,
            )
            texts = tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            golds = [problem.ground_truth for problem in part for _ in range(k)]
            verdicts = [verdict.correct for verdict in verifier.verify_many(zip(golds, texts, strict=True))]
            right[start : start + len(part)] = np.reshape(verdicts, (-1, k)).sum(axis=1)
    return right


def split(problems: Sequence[Problem], right: np.ndarray, *, k: int, validation: int) -> dict[str, list[Problem]]:
    """Easy and hard problems by avg@k, and as many held out of each as `validation` says (at most half)."""
    splits: dict[str, list[Problem]] = {}
    for name in ("easy", "hard"):
        band = NAMED_BANDS[name]
        of_band = [p for p, count in zip(problems, right, strict=True) if band.low * k <= count <= band.high * k]
        held = min(validation, len(of_band) // 2)
        splits[f"{name}-validation"], splits[name] = of_band[:held], of_band[held:]
    return splits


def write_splits(folder: Path, splits: dict[str, list[Problem]]) -> None:
    """The splits as Parquet files in verl's schema, by the names that `derivedata difficulty` gives them."""
    from derivedata.problems.write import table_bytes, verl_table

    folder.mkdir(parents=True, exist_ok=True)
    for name, problems in splits.items():
        (folder / f"{name}.parquet").write_bytes(table_bytes(verl_table(problems)))
    (folder / "counts.json").write_text(json.dumps({name: len(problems) for name, problems in splits.items()}))

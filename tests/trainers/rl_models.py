"""A model with random weights and problems for it, small enough for a step in a fraction of a second."""

from __future__ import annotations

from pathlib import Path

from derivedata.problems.problem import Problem, problem_uid
from derivedata.problems.write import table_bytes, verl_table
from tests.tiny_model import write_tiny_model


def random_model(folder: Path) -> Path:
    """The tiny tokenizer with a one-layer Llama of width 32."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(write_tiny_model(folder))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_problems(path: Path, count: int, *, first: int = 0) -> Path:
    problems = []
    for row in range(first, first + count):
        question = f"{row} + 1 ="
        problems.append(
            Problem(
                uid=problem_uid("p", row, question),
                data_source="p",
                prompt=({"role": "user", "content": question},),
                ability="math",
                ground_truth=str(row + 1),
                layout="made",
                path="p",
                row=row,
            )
        )
    path.write_bytes(table_bytes(verl_table(problems)))
    return path


def parity(prompts, completions, completion_ids=None, **_):
    """A reward that a model without any knowledge earns half the time."""
    return [float(sum(ids) % 2) for ids in completion_ids]

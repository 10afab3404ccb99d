"""A model folder without weights, made in milliseconds: what the fake server and everything around prompts needs.

    folder = write_tiny_model(tmp_path / "tiny")

The tokenizer is a byte-level BPE with a few hundred merges and SmolLM2's control tokens and chat template.
"""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TRAINING_TEXT = (
    "The question is what the text above says about the numbers, names and reasons that a reader wants to learn. "
    "Write a table with a header row and the answers to the questions, each in one to three complete sentences. "
)


def write_tiny_model(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE, context: int = 8192) -> Path:
    """Write config.json, tokenizer.json and tokenizer_config.json into `folder`, which is made; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(CONTROL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([_TRAINING_TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": context,
        "vocab_size": tokenizer.get_vocab_size(),
    }
    (folder / "config.json").write_text(json.dumps(config))
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special | {"tokenizer_class": "TokenizersBackend"}))
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return folder

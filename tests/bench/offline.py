"""vllm.LLM.chat in a process of its own, for tests.bench.engine: settings as the server's flags, rounds by stdin.

Reads a JSON line a round ({texts, seeds, sampling}) and answers with a line that begins with @.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    from vllm import LLM, EngineArgs, SamplingParams
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # The server's own flags through vLLM's own parser: the same engine, by construction.
    server_only = {"--disable-uvicorn-access-log", "--enable-prompt-tokens-details"}
    flags, skip = [], False
    for flag in sys.argv[1:]:
        if skip or flag in server_only:
            skip = False
            continue
        if flag == "--uvicorn-log-level":
            skip = True
            continue
        flags.append(flag)
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    engine = EngineArgs.from_cli_args(parser.parse_args(flags))
    llm = LLM.from_engine_args(engine)
    llm.chat([[{"role": "user", "content": "Hello"}]], SamplingParams(max_tokens=8, seed=1), use_tqdm=False)
    _answer({})
    for line in sys.stdin:
        task = json.loads(line)
        sampling = {key: value for key, value in task["sampling"].items() if key != "stop"}
        parameters = [SamplingParams(seed=seed, **sampling) for seed in task["seeds"]]
        conversations = [[{"role": "user", "content": text}] for text in task["texts"]]
        began = time.perf_counter()
        outputs = llm.chat(conversations, parameters, use_tqdm=False)
        seconds = time.perf_counter() - began
        _answer({"seconds": seconds, "tokens": sum(len(output.outputs[0].token_ids) for output in outputs)})


def _answer(value: dict) -> None:
    print("@" + json.dumps(value), flush=True)


if __name__ == "__main__":
    main()

"""vllm.LLM.chat in a process of its own, for tests.bench.engine: settings as the server's flags, rounds by stdin.

Reads a JSON line a round ({texts, seeds, sampling}) and answers with a line that begins with @.
"""

from __future__ import annotations

import json
import sys
import threading
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
        samples, halt = [], threading.Event()
        sampler = threading.Thread(target=_sample, args=(llm, samples, halt))
        sampler.start()
        began = time.perf_counter()
        outputs = llm.chat(conversations, parameters, use_tqdm=False)
        seconds = time.perf_counter() - began
        halt.set()
        sampler.join()
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        _answer({"seconds": seconds, "tokens": tokens, "samples": samples})


def _sample(llm, samples: list, halt: threading.Event) -> None:
    """Requests done, running and waiting, every half second: what the server's /metrics page would say."""
    base = None
    while not halt.wait(0.5):
        values: dict[str, float] = {}
        for metric in llm.get_metrics():
            if hasattr(metric, "value"):
                values[metric.name] = values.get(metric.name, 0.0) + metric.value
        done = int(values.get("vllm:request_success", 0))
        base = done if base is None else base
        running, waiting = values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]
        samples.append((done - base, int(running), int(waiting)))


def _answer(value: dict) -> None:
    print("@" + json.dumps(value), flush=True)


if __name__ == "__main__":
    main()

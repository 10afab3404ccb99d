"""Reads what a vLLM server counts, from its /metrics page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """A moment of a server; summed over its engines. Counters run from the server's start."""

    running: int  # requests being computed
    waiting: int  # requests queued
    prefix_queries: int  # prompt tokens looked up in the prefix cache
    prefix_hits: int  # prompt tokens found there
    prompt_tokens: int
    generation_tokens: int
    preemptions: int  # requests thrown out of a full KV cache, to be computed again


_NAMES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
}


def parse_metrics(page: str) -> ServerMetrics:
    """The numbers out of a page in Prometheus' text format; what isn't there is 0."""
    values = dict.fromkeys(_NAMES.values(), 0.0)
    for line in page.splitlines():
        name = line.partition("{")[0] if "{" in line else line.partition(" ")[0]
        if name in _NAMES:
            values[_NAMES[name]] += float(line.rpartition(" ")[2])
    return ServerMetrics(**{name: int(value) for name, value in values.items()})

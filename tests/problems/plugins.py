"""Verifiers of a user's own, as tests need them."""

from __future__ import annotations

import os
import resource
import time


def same_length(gold: str, response: str) -> bool:
    print("this must not reach stdout")
    return len(gold) == len(response)


def odd(gold: str, response: str):
    """Does what the response says."""
    if response == "raise":
        raise KeyError("no such thing")
    if response == "die":
        os._exit(3)
    if response == "sleep":
        time.sleep(60)
    if response == "spin":
        while True:
            pass
    if response == "eat":
        eaten = []
        while True:
            eaten.append(bytearray(64 << 20))
    if response == "limits":
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = resource.getrlimit(resource.RLIMIT_CPU)[0] - used.ru_utime - used.ru_stime
        return 0 < most < 10 and resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
    if response == "none":
        return None
    if response == "nonsense":
        return "perhaps"
    return "correct" if response == gold else 0.0


def wait(gold: str, response: str) -> bool:
    """Wait as many seconds as the response says, without using the processor."""
    time.sleep(float(response.split(maxsplit=1)[0]))
    return True

"""What the fuzzer starts from, and the test suite runs: inputs that were found, and real ones of each kind."""

from __future__ import annotations

import json
from pathlib import Path

CASES = Path(__file__).parent / "cases"


def inputs(target: str) -> list[bytes]:
    """The kept cases of a target, and real inputs of each kind."""
    found = [path.read_bytes() for path in sorted((CASES / target).glob("*"))]
    if target == "reader":
        import bz2
        import gzip

        import zstandard

        line = json.dumps({"id": "a", "text": "One, two.", "metadata": {"n": 1}}).encode() + b"\n"
        found += [line * 2, gzip.compress(line), zstandard.ZstdCompressor().compress(line), bz2.compress(line)]
        found += [
            b"[" + line + b"," + line + b"]",
            b"\xef\xbb\xbf" + line.replace(b"\n", b"\r\n"),
            rb'{"text":"\ud800"}',
        ]
    elif target == "style":
        from derivedata.generation.style import shipped_styles

        found += [path.read_bytes() for path in shipped_styles().values()]
    elif target == "answer":
        found += [b"so \\boxed{\\frac{1}{2}}\x000.5", b"<think>x</think> #### 1,234\x001234", b"(1, 2] or 50%\x00[1,2]"]
        found += [b"The answer is $2\\sqrt{3}$ cm.\x002\\sqrt 3", b"x = 3 \\text{ or } 4\x003,4", b"1=2=3\x003"]
    else:
        found += [
            b"SELECT * FROM books",
            b"EXPLAIN ANALYZE SELECT 1",
            b"SELECT * FROM 'SECRET'",
            b"COPY books TO 'WRITTEN'",
        ]
        found += [
            b"SELECT * FROM read_csv('SECRET')",
            b"ATTACH 'WRITTEN' AS a",
            b"SELECT 1; SET a = 1",
            b"INSTALL httpfs",
        ]
    return found

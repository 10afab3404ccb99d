"""Numbers as people write them on the command line: 1.2B parameters, 30M tokens, 1e22 FLOPs; and as it shows them."""

from __future__ import annotations

import math

import click

from derivedata.errors import UserError
from derivedata.quantity import parse_quantity


class Quantity(click.ParamType):
    """A positive number with an optional suffix k, M, B (or G) or T."""

    name = "number"

    def convert(self, value, param, ctx):
        """Parse text; numbers given as defaults pass through."""
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return parse_quantity(value)
        except ValueError as error:
            raise UserError(str(error), where=_option(param)) from None


class Quantities(click.ParamType):
    """Several positive numbers separated by commas: 14M,60M,190M."""

    name = "numbers"

    def convert(self, value, param, ctx):
        """Parse comma-separated text to a tuple."""
        if isinstance(value, (tuple, list)):
            return tuple(value)
        try:
            found = tuple(parse_quantity(part) for part in value.split(",") if part.strip())
            if not found:
                raise ValueError(f"{value!r} holds no number")
            return found
        except ValueError as error:
            raise UserError(str(error), where=_option(param)) from None


def _option(param: click.Parameter | None) -> str | None:
    return None if param is None else (param.opts[0] if param.opts else param.name)


def shorten(value: float | None, digits: int = 3) -> str:
    """A count for people: 1.2B, 30M, 845k; infinity and None in words."""
    if value is None:
        return "unknown"
    if math.isinf(value):
        return "unbounded"
    if math.isnan(value):
        return "undefined"
    size = abs(value)
    for suffix, unit in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        # 999.6M would round to 1e+03M: it is written as 1B.
        if float(f"{size:.{digits}g}") >= unit and size < 9.995e14:
            return f"{value / unit:.{digits}g}{suffix}"
    return f"{value:.{digits}g}" if size < 1e3 else f"{value:.{digits - 1}e}".replace("e+", "e")

"""Functions of the user's own, named as `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from derivedata.errors import UserError


def load_function(name: str, option: str) -> Callable[..., Any]:
    """The function that `module:function` names, as the user gave it for `option`.

    Raises:
        UserError: it can't be imported or called.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"can't be imported: {error}",
            where=option,
            value=name,
            remedy="write module:function, with the module on PYTHONPATH",
        ) from None
    if not callable(function):
        raise UserError("is not a function", where=option, value=name)
    return function

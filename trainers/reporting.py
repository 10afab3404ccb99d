"""Where metrics go besides metrics.jsonl: Weights & Biases or TensorBoard, when they are installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from derivedata.errors import UserError


class Reporter(Protocol):
    """Takes rows of metrics."""

    def log(self, row: Mapping[str, Any]) -> None:
        """A row with its `step`."""

    def close(self) -> None:
        """Send what is left."""


class Nowhere:
    """Reports to nothing."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Nothing happens."""

    def close(self) -> None:
        """Nothing happens."""


class WeightsAndBiases:
    """A run of the project `derivedata`, named after the output."""

    def __init__(self, name: str, config: Mapping[str, Any]):
        import wandb

        self._run = wandb.init(project="derivedata", name=name, config=dict(config))

    def log(self, row: Mapping[str, Any]) -> None:
        self._run.log(numbers(row), step=row["step"])

    def close(self) -> None:
        self._run.finish()


class TensorBoard:
    """Event files in a folder of the run."""

    def __init__(self, place: str):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=place)

    def log(self, row: Mapping[str, Any]) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


def open_reporter(kind: str, *, name: str, place: str, config: Mapping[str, Any]) -> Reporter:
    """none, wandb or tensorboard. Raises UserError when its package is not installed."""
    try:
        if kind == "wandb":
            return WeightsAndBiases(name, config)
        if kind == "tensorboard":
            return TensorBoard(place)
    except ImportError:
        raise UserError(
            "the package is not installed", where="--report-to", value=kind, remedy=f"pip install {kind}"
        ) from None
    return Nowhere()


def numbers(row: Mapping[str, Any], before: str = "") -> dict[str, float]:
    """The numbers of a row, nested ones by path: {"derived_tokens/repeat": 512}."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{before}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and f"{before}{name}" != "step":
            found[f"{before}{name}"] = value
    return found

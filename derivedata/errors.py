"""How an expected failure leaves the program: as one line that says what, where, the value and the remedy."""

from __future__ import annotations


class UserError(Exception):
    """Something that can be expected to go wrong, said in one line.

    The command line prints the line and exits with code 1; from Python it is an ordinary exception.

    Args:
        what: what is wrong, without a full stop.
        where: file, line or field it was found at.
        value: the offending value (shortened to 200 characters).
        remedy: what to do about it.
    """

    def __init__(self, what: str, *, where: object = None, value: object = None, remedy: str | None = None):
        self.what, self.where, self.value, self.remedy = what, where, value, remedy
        super().__init__(self.line)

    @property
    def line(self) -> str:
        """The failure as one line without control characters, so that no input can forge a second line."""
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.value is not None:
            shown = self.value if isinstance(self.value, str) else repr(self.value)
            text += f" (got {shown if len(shown) <= 200 else shown[:197] + '...'})"
        if self.remedy:
            text += f". {self.remedy[0].upper()}{self.remedy[1:]}"
        return "".join(c if c.isprintable() else " " for c in text)

    def __reduce__(self):
        # Crosses process boundaries (Datatrove's workers) with its fields.
        return (_rebuild, (self.what, self.where, self.value, self.remedy))


def _rebuild(what, where, value, remedy) -> UserError:
    return UserError(what, where=where, value=value, remedy=remedy)


def refuse_below_one(options: object, *names: str) -> None:
    """Raise a UserError for the first of these fields that is given and below 1; None means not given."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError("must be 1 or more", where=name, value=value)

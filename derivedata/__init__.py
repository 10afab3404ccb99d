"""derivedata: derive training data, account for every token, and say what the derived tokens are worth."""

__version__ = "0.1.0"

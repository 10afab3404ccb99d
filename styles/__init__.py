"""The shipped styles: data, no code."""

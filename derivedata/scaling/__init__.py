"""Scaling laws and the advice they give. NumPy and SciPy only; no input or output."""

"""The included trainers."""

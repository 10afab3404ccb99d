"""RL problems: layouts, the answer verifier, and pass rates."""

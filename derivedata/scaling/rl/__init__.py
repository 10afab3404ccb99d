"""RL: compute-performance curves, the number of rollouts for a budget, health of a run. NumPy and SciPy; no I/O."""

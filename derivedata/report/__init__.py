"""Figures, and one way to make a self-contained HTML page of tables and figures."""

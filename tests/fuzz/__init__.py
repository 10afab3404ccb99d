"""Coverage-guided fuzzing of what reads other people's bytes: `just fuzz`. Cases that were found stand in `cases/`."""

"""`python -m derivedata` is the command line."""

from derivedata.cli import main

main()

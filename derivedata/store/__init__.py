"""What both halves stand on: paths, create-if-absent, ledger, journal, fingerprint, manifest, books."""

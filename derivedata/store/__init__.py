"""What all stages stand on: where files are, how work is committed exactly once, and what an output holds.

paths, faults, probe            folders anywhere, create-if-absent, faults in one line
units, kinds                    what is committed at once, its name, what is still missing
journal, decision, ledger       from finished requests to a committed unit; adopt: a file that is already there
tables, parts, books            what a commit adds to the manifest
manifest, snapshots, compaction, summary, query      reading it: frames, SQL, large outputs
fingerprint, runs, masking, lease      which configuration made it, and who writes now
runs_table                      tables of trained runs, as users bring them
"""

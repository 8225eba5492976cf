"""The hand-over in figures: gaps at the fence by policy, the second token over a slow line, streamed tokens per router core.

`python -m bench.handover [--quick]` prints the tables of docs/results/handover.md. Only ratios within one run are claims.
"""

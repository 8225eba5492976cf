"""Does the simulator tell the truth, and how fast? `python -m bench.fleet agreement`, `python -m bench.fleet speed`."""

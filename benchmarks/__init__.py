"""Claims of speed and memory: `python -m benchmarks.NAME`. Each prints ratios taken in one run as a table, last."""

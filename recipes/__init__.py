"""Experiments: `python -m recipes.NAME`. Each prints a table last, takes `--json FILE`, and names the machine."""

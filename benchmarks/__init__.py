"""The experiments, one a file: `python -m benchmarks --list` names them."""

"""One program for each framework; `benchmarks/frameworks.py` runs them."""

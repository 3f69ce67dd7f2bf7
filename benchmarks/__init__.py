"""What the store costs, as ratios in one run. `python -m benchmarks` runs everything (make bench)."""

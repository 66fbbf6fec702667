"""Parts of `benchmarks/environments.py`: agreement with published scorers, determinism, rates and costs."""

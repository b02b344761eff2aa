"""benchmarks: see CONTRIBUTING.md."""

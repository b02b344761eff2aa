"""cache: see CONTRIBUTING.md."""

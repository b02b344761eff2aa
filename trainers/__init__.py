"""trainers: see CONTRIBUTING.md."""

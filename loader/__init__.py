"""loader: see CONTRIBUTING.md."""

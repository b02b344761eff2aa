"""sharding: see CONTRIBUTING.md."""

"""Development tools, run as `python -m tools.<name>` from the root of the repository."""

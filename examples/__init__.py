"""Programs that the documentation shows; each runs as a test."""

"""The rows of the stream engine: its deltas, its load, its endings, its history."""

"""The drill: the real server, started, filled with streams and ended in every way that hurts."""

"""The top of the house: so far the host, ``fiberscope serve`` and ``fiberscope chat``."""

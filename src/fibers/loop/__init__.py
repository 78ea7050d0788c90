"""How a fiber runs: asyncio's hooks, the ready queue, the inner task, the run loop.

Public names are in ``fibers``; this package is for the primitives in ``fibers.ops``.
"""

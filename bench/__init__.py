"""Benchmarks of fibers beside asyncio and its neighbours; `make bench` runs them."""

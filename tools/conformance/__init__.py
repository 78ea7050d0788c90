"""Other people's tests of asyncio, run with the task factory: see ``__main__``."""

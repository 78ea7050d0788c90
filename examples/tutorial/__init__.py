"""A service of coroutines moves over to fibers, in five steps."""

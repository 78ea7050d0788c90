"""Mutation testing of the run loop, the scope and the regions: `make mutation`."""

"""Tests of fiberscope; a package, so that helpers are imported as `tests.<module>`."""

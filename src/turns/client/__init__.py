"""A child process that is an agent: what it says, how it is watched, how it is ended."""

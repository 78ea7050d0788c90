"""The rows of turns: their settlement, how many a second, a restart over many."""

"""Handles: what turns are called, how they settle, who waits, what a restart makes of them."""

"""The folder of a workspace: its files, how their changes are undone, and who watches them."""

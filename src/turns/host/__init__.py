"""The host: what serves streams to people, over HTTP and on the command line."""

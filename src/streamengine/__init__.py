"""Owned token streams: supervised, durable, ended by exactly one terminal event."""

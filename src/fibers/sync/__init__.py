"""What fibers tell each other with: one-shot values, latches, permits, queues, broadcasts.

Each primitive is a plain object; its operations are effects. Waiting fibers are let go through the
ready queue (PD16), never on the stack of the one that lets them go.
"""

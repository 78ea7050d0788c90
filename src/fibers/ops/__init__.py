"""The primitives: what an effect does when a fiber evaluates it, one family a module.

They know the run loop and nothing of the public ``Effect``, which gives each of them its face.
"""

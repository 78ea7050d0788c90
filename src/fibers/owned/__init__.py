"""What owns fibers and resources for as long as a scope is open: sets, maps and handles of fibers,
counted references, pools, caches.

Each is made by an effect, ``make``, that ties it to the scope in context.
"""

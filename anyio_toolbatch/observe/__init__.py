"""
Observers to hand to a runner, to see what its batches do.

Each is a module of its own, imported by those who use it.
"""

"""
Where this library meets frameworks and engines: one module each.

None is imported by the package itself, and each needs an extra of its own.
"""

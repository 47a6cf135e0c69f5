"""The Python front door: what `import fedstrata` offers. The command line is a thin layer over it.

Nothing heavy is imported by this package itself: `fedstrata.__init__` loads its modules when they are asked
for.
"""

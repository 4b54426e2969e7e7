"""Other systems that do the same work, each in a process and a virtual environment of its own.

Nothing here may import what only one side has: the modules of the peers run in their environments.
"""

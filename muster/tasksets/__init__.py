"""Task sets: packs of tasks under one root, from which runs draw; how they are made, imported, checked and proven.

May import `protocol` and below. Used by `evaluation`, `verification`, `clients` and the command line.
"""

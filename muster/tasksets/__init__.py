"""Task sets: packs of tasks under one root, from which runs draw; how they are written, read and proven.

May import `protocol` and below. Used by `authoring`, `verification`, `clients` and the console.
"""

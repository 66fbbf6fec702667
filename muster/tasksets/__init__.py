"""Task sets: packs of tasks under one root, from which runs draw; how they are written, read and proven.

Private tests too: masters, sealed references, and the grades that the trainer publishes (docs/use/private-tests.md).
May import `protocol` and below. Used by `authoring`, `verification`, `clients`, the console, and who grades.
"""

"""Private tests: references that are sealed until an epoch's end, and the grades that the trainer publishes meanwhile.

Pure: masters, sealed references and grades, as bytes. May import `protocol`, `environments` and what is
below them. Used by task sets, by checks, and by the processes that grade (docs/use/private-tests.md).
"""

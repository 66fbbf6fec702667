"""Settings: their schema, where each value comes from, the trainer's named recipes, and writing TOML.

May import `errors` and `constants` only. Used everywhere above.
"""

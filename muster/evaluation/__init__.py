"""How good a checkpoint is: what it is asked, who answers, how often it is right, and the answers kept on disk.

May import `tasks`, `protocol` and below. Used by `models`, the trainer, the worker's engine process and `muster eval`.
"""

"""Models on disk: making a small one, reading Hugging Face folders, safetensors and low-rank adapters, hashing them.

May import `tasksets` and below. Used by `shardcast`, the worker, the validator and the trainer.
"""

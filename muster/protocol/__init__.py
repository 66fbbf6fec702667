"""What every party must compute alike: terms, draws, prompts, messages, hashes, Merkle trees, signatures.

May import `tasks`, `runtime`, `settings`, `contracts` and no network. Used by every room above and by all processes.
"""

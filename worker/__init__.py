"""The worker: generates the rollouts it was drawn, proves and uploads them, commits their root, defends itself.

May import `muster` but no other process. Started by `muster worker run` and by a swarm.
"""

from muster.runtime.processor import limit_vllm

limit_vllm()  # before any module of this process imports vLLM

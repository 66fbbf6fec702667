"""Tests of the generation engine and of replay: the real vLLM, the real transformers forward, production limits."""

"""The validator: inspects committed work by replaying a sample, reports verdicts, opens cases and votes on them.

May import `muster` but no other process. Started by `muster validator run` and by a swarm.
"""

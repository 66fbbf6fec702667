"""The local swarm: every process of a run on one machine, started in order of readiness, all ended at its end.

`processes` knows one operating-system process group, `supervisor` a set of them, `state` what a killed supervisor
leaves behind, `plan` which processes a swarm has, `stage` what must be on chain before they start, `watch` what is
happening, `facts` reads what happened, `summary`, `report` and `plots` tell it, `demo` does all of it in one command.
May import everything but `cli`. Used by `muster swarm`.
"""

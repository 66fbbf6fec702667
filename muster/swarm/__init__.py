"""The local swarm: every process of a run on one machine, started in order of readiness, all ended at its end.

`processes` knows one operating-system process group, `supervisor` a set of them, `state` what a killed supervisor
leaves behind, `launch` how each process is started, `opening` opens a run on chain, `running` starts and watches one,
`watch` shows what is happening. A demo: `plan` says which processes it has, `stage` what must be there before they
start, `facts` reads what happened, `summary`, `report` and `plots` tell it, `demo` does all of it in one command.
`trial` is an owner's own run. May import everything but `console`. Used by `muster swarm` and `muster run init`.
"""

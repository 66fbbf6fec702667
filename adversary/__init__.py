"""The demo's cheater: a worker with one thing wrong, which `muster demo` and `muster swarm up --cheaters` start.

It may import `worker` and `muster`. Nothing imports it, so no path leads from an honest process to it; it is installed
with Muster because the demo is, too. The cheats that tests try are in `testbed/adversaries`.
"""

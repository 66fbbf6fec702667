"""muster up: one command that makes a node out of a machine, and goes on with it later.

`place` says where a node's files are and which node is meant, `prepare` finds or makes it and its keys and looks at
the machine, `facts` reads the chain and `steps` decides what is left to do, `preview` shows it, `setup` does it,
`running` keeps the process, `command` is all of them in order. May import the other folders of the console; nothing
imports it.
"""

from __future__ import annotations

from muster.console.up.command import app

__all__ = ["app"]

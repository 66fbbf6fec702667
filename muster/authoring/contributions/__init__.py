"""Environments that strangers contribute: the folder an author fills, its checks, and what becomes of it.

`folder` and `template` are the author's side, `checks` is what author and owner run, `unpack` makes a task set of it.
The signed file that travels is `muster.tasksets.contribution_pack`.
"""

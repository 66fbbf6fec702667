"""What became of one run, for people: pages, the JSON that every number on them comes from, and a live stream.

It follows the run's chain and its log into a database of its own, which may be deleted, and asks the orchestrator for
nothing that a stranger could not ask: so anybody can run one for anybody's run. No member of a run waits for it.

documents.py, log_reader.py, current.py   what it reads, checked; what it leads to
files.py, reading.py, reading_process.py  files of rollouts, read in processes of their own
service.py, routes.py, app.py, site.py    parts, routes, pages
boards.py, views.py                       documents about the whole run, and about single things
"""

"""What became of one run, for people: pages, and the JSON that every number on them comes from.

It follows the run's chain and its log into its own database, which may be deleted. It asks the orchestrator for nothing
that a stranger could not ask, so a stranger can run one, of any run. No member of a run waits for it.

documents.py, log_reader.py, current.py   what it reads, checked; what it leads to
files.py, reading.py, rows.py  files of rollouts, parsed in a separate process; rows as text
service.py, routes.py, app.py, site.py    parts, routes, pages
boards.py, views.py                       documents about the whole run, and about single things
"""

"""What people see of a run: the page, the JSON that every number on it comes from, and the stream that keeps it live.

It reads the database and decides nothing about work or money. Two of its modules write what only the page shows:
`series` keeps the numbers of reports for charts, `announcements` names, machines and scores. Used by `orchestrator.app`
and `orchestrator.service`; `reports` and `rebuild` use these two.
"""

"""The orchestrator: one HTTP service per run, where the swarm meets.

Membership comes from the chain, files from workers, judgements from validators; out go demand for workers, accepted
work for the trainer and a summary for everybody. It is a convenience, not an authority: money and guilt are decided
on chain, files are named by content, verdicts are signed by validators and checked by whoever uses them. Its
database can be deleted and is rebuilt from chain and storage.

    python -m orchestrator --config FILE

app.py       routes; nothing but translation between HTTP and the rest
auth.py      who sends a request: signature, replay, membership
uploads.py   which file belongs to which commitment
verdicts.py  which judgements count
standing.py  pure: what a commitment is worth, given its verdicts and cases
follower.py  chain → database
ledger.py    database → messages
summary.py   the document that live view, report and status page show
tables.py, database.py, migrations/   state
"""

"""The orchestrator: one HTTP service per run, where its workers, validators and trainer exchange work.

Membership comes from the chain, files from workers, verdicts from validators; out go demand for workers, accepted
work for the trainer and a summary for everybody. It decides neither money nor guilt: the chain does. Files are named
by content; verdicts are signed by validators and checked by their users. Its database can be deleted and is
rebuilt from chain and storage.

    python -m orchestrator --config FILE

service.py, app.py      all parts put together; routes that translate between HTTP and these parts
admission.py            which requests are answered when there are too many
auth.py                 who sends a request: signature, replay, membership
uploads.py              which file belongs to which commitment
verdicts.py             which verdicts are taken; what they come to: muster.protocol.acceptance
reports.py, relay_directory.py      the trainer's reports; who serves weights
chain_follower.py, chain_projection.py   chain → database
queries.py, run_facts.py, events.py   database → messages; what limits workers; the log of events that live views show
run_info.py             what a newcomer needs
summary.py, metrics.py  the document that live view and report show; Prometheus
tallies.py              counts of commitments and of what nodes did, kept where they change
kept.py                 answers that are made once for all who ask, with an age and a bound
page/                   what people see: documents, the stream of changes, HTML
tables.py, database.py, postgres.py, rebuild.py   state, and how it comes back from storage
lease.py                what one of several processes does for all, and what each has to itself
"""

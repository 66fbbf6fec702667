"""The orchestrator: one HTTP service per run, where its workers, validators and trainer exchange work.

Membership comes from the chain, files from workers, verdicts from validators; out go demand for workers, and files and
one log of signed documents for everybody. It decides neither money nor guilt: the chain does. Files are named
by content; verdicts are signed by validators and checked by their users. Its database can be deleted and is
rebuilt from chain and storage.

    python -m orchestrator --config FILE

service.py, app.py      all parts put together; routes that translate between HTTP and these parts
admission.py            which requests are answered when there are too many
auth.py                 who sends a request: signature, replay, membership
uploads.py              which file belongs to which commitment
verdicts.py             which verdicts are taken; what they come to: muster.protocol.acceptance
log.py, shown.py        the log: one way in for each kind of signed document, places, storage
reports.py, relay_directory.py, current.py   the trainer's reports; who serves weights; what lasts only minutes
run_info.py, metrics.py what a newcomer needs; Prometheus
elsewhere.py            where people find the page: an explorer
rebuild.py, lease.py    how state comes back from storage; what one of several processes does for all

The tables, and what chain and documents lead to in them, are in muster.ledger: an explorer has them too.
"""

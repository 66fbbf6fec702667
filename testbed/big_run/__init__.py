"""A synthetic run of any size in the databases of an orchestrator and an explorer, to load pages at scale.

    python -m testbed.big_run FOLDER [--steps 100000] [--nodes 5000] [--commitments 1600000]

`shape` draws who did what and when, `rows` and `court` turn that into rows of each table, `fill` inserts them, and
`process` serves them. Nothing is signed: signatures in the documents are zeros.
"""

"""The chain and the signed documents of a run, in the tables of a database."""

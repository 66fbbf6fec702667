"""A small economy on the real contracts: operators with strategies, on a local chain whose clock is moved.

`chain` is the chain and who paid which gas, `assumptions` what things cost off chain, `parties` who takes part and
what each may do, `proceedings` a case from its opening to the last share, `world` the hours of a run. Nothing here
computes a model: whether rows are false is the world's knowledge, and whether an inspection sees it is a draw with
the chance that `muster.verification.sample_policy` gives.
"""

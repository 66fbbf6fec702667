"""What makes work good or bad: checks without a forward pass, evidence, profiles with their limits, sample sizes.

May import `rollouts`, `chain`, `protocol` and below. Used by the validator, `clients`, `swarm` and the command line.
"""

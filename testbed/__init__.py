"""What tests and benchmarks share. In no wheel. Imports the library and the processes, never tests.

`chain` has local chains, `runs` whole runs with processes, `adversaries` workers that do one thing wrong, `escapes`
programs that attack the sandboxes, `economy` and `big_run` simulated runs, `servers` PostgreSQL, S3 and weights,
`samples` data made by hand, `suite` what pytest needs: scheduling, forks, durations.
"""

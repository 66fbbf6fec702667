"""What tests and benchmarks share. In no wheel. Imports the library and the processes, never tests.

`processes` starts, watches and ends whatever runs beside a test, `http` asks and is a server, `waiting` waits,
`machine` and `terminal` type commands, `browser` and `page_checks` look at the page. `chain` has local chains,
`weights` small checkpoints and who serves them, `servers` PostgreSQL and S3, `runs` whole runs with processes,
`samples` data made by hand, `adversaries` workers that do one thing wrong, `escapes` programs that attack the
sandbox, `economy` and `big_run` simulated runs, `suite` what pytest needs: scheduling, forks, durations.
"""

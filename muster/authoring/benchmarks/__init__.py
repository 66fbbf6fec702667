"""Published benchmarks: read their files, ask their questions, score the answers as their authors do, and sum up.

    published file → items (`data`) → prompts → completions (`muster.clients.answering`) → scores (`scoring`) →
    records of items (`journal`) → figures (`summary`)

`definitions` says what a benchmark is, `questions` and `programs` have the nine, `catalog` names them. May import
`authoring.tasks` and the library. Used by `muster eval` and by the benchmark of agreement with published scorers.
"""

"""The sandbox: CPython as a WebAssembly component, the same on every machine, with fuel for time and no way out.

`guest` is what runs inside, `component` builds and names it, `runtime` runs one call, `server` is the process that
does so behind the outer walls, `client` talks to it. May import `runtime` and below. Used by `environments`.
"""

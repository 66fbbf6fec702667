"""The sandboxes. The first is deterministic: CPython as a WebAssembly component, with fuel for time and no way out.

`guest` is what runs inside, `component` builds and names it, `runtime` runs one call, `server` is the process that
does so behind the outer walls, `client` talks to it. The second, `native`, runs programs of `images` behind
`native_walls`; its results are no ground for a case. May import `runtime` and below. Used by `environments`.
"""

"""The chain, as every process uses it.

`client.Chain` is the face: reads (`reads`), acts, previews. Behind it: `keys` (keystores, `Signer`), `sender` and its
`journal` (every transaction once), `rpc` (JSON-RPC, bounded), `codec`, `abi`, `reverts` and `sentences` (what the
contracts say, in words), `types` and `events` (the same, as dataclasses), `cursor` (following events across restarts
and reorgs), `consent` (signatures of a registration). `deploy` puts the contracts there and checks them; `anvil` and
`devchain` are for local chains.
"""

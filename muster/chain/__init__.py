"""The chain, as every process uses it.

`client.Chain` is the face: reads (`reads`), transactions, dry runs. Behind it: `connection` (`provider`, a
bounded session, and AsyncWeb3 over it), `keys` (keystores, `Signer`), `sender` and `tx_journal` (every transaction
once), `error_messages` (custom errors as sentences), `types` and `events` (what the contracts say), `cursor` (events
across restarts and reorgs), `consent` (signatures of a registration). `deploy` puts the contracts there and verifies
them; `anvil` is for local chains. It may import `protocol` and what is below; processes, clients and the command line
use it.
"""

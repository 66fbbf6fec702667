"""Protocol constants: numbers that two machines must agree on.

None of them can be set from the environment. Each says what breaks when it changes. What a run owner may
choose is in `muster.protocol.terms`; what an operator may choose is in `muster.settings.schema`.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1
"""Part of the EIP-712 domain, so of every signature. Changing this breaks all running swarms, on purpose."""

HOUR_SECONDS: Final = 3600
"""Money is counted in whole hours since the epoch. Changing this breaks the contracts' window (Runs.sol)."""

WINDOW_HOURS: Final = 24
"""Full hours between the end of a commitment's hour and its maturity. Mirrors Runs.WINDOW_HOURS."""

UNSEALED_WINDOW_HOURS: Final = 72
"""The same for an hour that no quorum of validators has sealed. Mirrors Runs.UNSEALED_WINDOW_HOURS."""

BASIS_POINTS: Final = 10_000

TOKEN: Final = 10**18
"""Wei in one token or one ether. Changing this breaks nothing but what people are shown and type."""

MICRO: Final = 1_000_000
"""Rewards cross borders as signed integers in millionths. Changing this breaks leaves and the court."""

MAX_CLASSES: Final = 8
"""Work classes per run. Mirrors Runs.MAX_CLASSES; a class word is packed by `muster.protocol.terms.pack_class`."""

MAX_BUDGETS: Final = 14
"""Thinking budgets per class. Fourteen 16-bit budgets, a count and a weight fill one 256-bit word."""

DRAW_CHAIN_LENGTH: Final = 1 << 16
"""Links in the hash chain a validator fixes when it registers: one for each hour, for seven years."""

SAMPLE_BLOCKS: Final = 1
"""The sample of a commitment follows from the block this many after it. Changing this changes every sample."""

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Largest rollout file anyone must accept. A larger one is refused at upload and rejected by validators."""

SLOWEST_BYTES_PER_SECOND: Final = 64 * 1024
"""Of a connection that both its ends still wait for, on average, while a file passes (`muster/clients/transport.py`,
`orchestrator/auth.py`). Raising this loses uploads over slow lines; lowering it lets a slow sender hold its place for
longer."""

MAX_SUMMARY_BYTES: Final = 64 << 20
"""Of what is left of one day whose detail is gone: 60 bytes of a node, and 30 of each time that its commitments begin
to end in another way."""

MAX_EVIDENCE_BYTES: Final = 16 * 1024 * 1024
"""Largest evidence bundle: the rows concerned, their tasks and the measured numbers. The largest row and the largest
task fit into it together (`MAX_ROW_BYTES`, `MAX_TASK_BYTES`)."""

UNNAMED_SECONDS: Final = 24 * HOUR_SECONDS
"""How long an orchestrator keeps a file that no commitment names, and evidence that no verdict or case does. Lowering
it loses files of workers that are not updated: they discard work whose receipt is half as old."""

REQUEST_LIFETIME_SECONDS: Final = 60
"""Longest time between signing a request and its expiry; the replay cache must remember that long."""

CHAIN_ANVIL: Final = 31_337
"""The local chain, and the only one on which raw private keys are accepted."""

CHAIN_BASE_SEPOLIA: Final = 84_532

PUBLIC_RPC_URLS: Final = {CHAIN_BASE_SEPOLIA: "https://sepolia.base.org"}
"""Public endpoints, by chain."""

MAX_LORA_RANK: Final = 256
"""Of a low-rank adapter that a trainer makes and a node applies: what its weights cost to make grows with it. Raising
it breaks nodes that are not updated: they refuse such an adapter, and fetch the step whole."""

MAX_ACCEPTED: Final = 1024
"""Commitments in the orchestrator's answer about accepted work, oldest first; used ones make room for the next. A
batch cannot have more files than this answer lists: below `trainer.max_files` it might never fill."""

"""Gas of the contracts' operations, against the peer's and against what was last committed.

    python benchmarks/gas.py [--json | --check | --update]

Runs tests/contracts/Gas.t.sol, in which every call is a separate transaction. 10 operators with 10 nodes each commit
once an hour for 30 hours, 16 groups of 8 samples, and claim as the work matures. Other cases measure one commitment
after each event that can precede it. `commit_beyond_cover` is one of a worker that has as much unsettled as its stake
covers, while a case keeps matured pay from it: two further reads. `claim_first` is the first claim to a wallet without
tokens: 17,100 of it are the token's new storage word. `post` is the trainer's root of wages, `post_first` a run's
first. `wage` is a validator's claim by a root, `wage_first` its first, and `wage_empty` its first to a wallet without
tokens. `ratio` is the limit over ours, 1 being the limit. The peer's medians are those of its nearest operations
(registering a provider and adding a node for joining, invalidating work for a slash), where it has any.

--check fails when an operation costs 3% more than benchmarks/gas.snapshot.json says; --update writes that file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from eth_abi.abi import decode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import Figure, document, figure
from muster.protocol.hashes import keccak
from testbed.paths import ROOT

SNAPSHOT = Path(__file__).with_name("gas.snapshot.json")
TESTS = "tests/contracts/Gas.t.sol"
TOPIC = "0x" + keccak(b"Samples(string,uint256[])").hex()
RUN_SECONDS = 540
REGRESSION = 1.03

Samples = dict[str, list[int]]


@dataclass(frozen=True)
class Target:
    """One line of the table: the median or the maximum of an operation, in gas."""

    name: str
    operation: str
    limit: int
    peer: int | None
    worst: bool = False
    ceiling: int = 0
    """What a limit that is known to be missed must not exceed either."""

    def figure(self, samples: Samples) -> Figure:
        values = samples[self.operation]
        ours = [max(values)] if self.worst else values
        ratio = self.limit / self.value(samples)
        return figure(self.name, ours, ratio=ratio, target=1.0, unit="gas", peer=self.peer, limit=self.limit)

    def value(self, samples: Samples) -> float:
        """Return the value that is compared with the limit."""
        values = samples[self.operation]
        return max(values) if self.worst else statistics.median(values)


TARGETS = (
    Target("commit_median", "commit", 68_000, 259_405),
    Target("commit_max", "commit", 74_000, 327_805, worst=True),
    Target("commit_beyond_cover", "commit_beyond_cover", 74_000, 259_405),
    Target("claim_median", "claim", 62_000, 70_202),
    Target("claim_first", "claim_first", 70_000, 70_202, ceiling=75_000),
    Target("seal_median", "seal", 81_000, None),
    Target("post_median", "post", 80_000, None),
    Target("wage_first", "wage_first", 95_000, 70_202, worst=True),
    Target("wage_median", "wage", 60_000, 70_202),
    Target("join", "join", 240_000, 181_265 + 302_140),
    Target("objective_slash", "objective_slash", 190_000, 454_702),
    Target("deploy", "deploy", 16_600_000, 17_115_975),
)


def measure() -> Samples:
    """Gas of every operation, each time it was done. Exits with forge's words when a test fails."""
    forge = ROOT / "node_modules" / ".bin" / "forge"
    command = [forge, "test", "--root", ROOT, "--match-path", TESTS, "--json", "-vv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    try:
        suites = json.loads(done.stdout)
    except json.JSONDecodeError:
        sys.exit(f"forge test failed:\n{done.stdout}{done.stderr}")
    samples: Samples = {}
    for suite in suites.values():
        for name, result in suite["test_results"].items():
            if result["status"] != "Success":
                sys.exit(f"{name}: {result['reason']}")
            for log in result["logs"]:
                if log["topics"][:1] == [TOPIC]:
                    operation, values = decode(["string", "uint256[]"], bytes.fromhex(log["data"][2:]))
                    samples.setdefault(operation, []).extend(values)
    return samples


def snapshot(samples: Samples) -> dict[str, dict[str, int]]:
    """Return the committed snapshot: median and maximum of every operation."""
    return {
        name: {"median": round(statistics.median(values)), "max": max(values)}
        for name, values in sorted(samples.items())
    }


def regressions(now: dict[str, dict[str, int]], before: dict[str, dict[str, int]]) -> list[str]:
    """Return one sentence for each operation that costs too much, is new, or is gone."""
    found = [f"{name} is not in the snapshot" for name in now.keys() - before.keys()]
    found += [f"{name} is measured no more" for name in before.keys() - now.keys()]
    for name in now.keys() & before.keys():
        for kind, value in now[name].items():
            old = before[name][kind]
            if value > old * REGRESSION:
                found.append(f"{name}, {kind}: {value:,} gas, {value / old - 1:.1%} more than {old:,}")
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--json", action="store_true", help="one JSON document on stdout")
    mode.add_argument("--check", action="store_true", help="fail on a limit or on a regression above 3%%")
    mode.add_argument("--update", action="store_true", help="write the snapshot")
    options = parser.parse_args()

    samples = measure()
    figures = [target.figure(samples) for target in TARGETS]
    if options.update:
        SNAPSHOT.write_text(json.dumps(snapshot(samples), indent=1) + "\n")
    if options.json:
        print(document(figures, machine="forge's EVM"))
        return
    for one in figures:
        peer = f"  peer {one['peer']:>12,}" if one["peer"] else ""
        print("{name:19} ours {ours:>12,}  limit {limit:>12,}".format(**one) + peer)
    if options.check:
        bad = [target.name for target in TARGETS if target.value(samples) > max(target.limit, target.ceiling)]
        bad = [f"{name} is above its limit" for name in bad]
        bad += regressions(snapshot(samples), json.loads(SNAPSHOT.read_text()))
        if bad:
            sys.exit("gas: " + "\n     ".join(bad) + "\n  next: python benchmarks/gas.py --update, if that is meant")


if __name__ == "__main__":
    main()

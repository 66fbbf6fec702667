"""Evidence: a replay confirms true evidence, and invented evidence never convicts."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import replace

import numpy as np
import pytest

from muster.chain.keys import Signer
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.scoring import Scorers
from muster.environments.task import Task
from muster.protocol.hashes import content_hash
from muster.protocol.kinds import kind_of
from muster.protocol.reasons import Reason
from muster.rollouts.parquet import FileLimits, write_rollouts
from muster.rollouts.schema import Rollout
from muster.verification.bundles import (
    MAX_ROWS,
    EvidenceBundle,
    Inspection,
    make_bundle,
)
from muster.verification.checks import MAX_ROW_BYTES, Finding, check_file
from muster.verification.rules import CommittedWork, Rules
from testbed.samples.commitments import (
    ACCUSER,
    NODE,
    STORAGE,
    committed,
    drawn,
    honest_rows,
    rules,
    upload_of,
)
from testbed.samples.verification_context import (
    Context,
    accuse,
    changed,
    sampling_mismatch,
    shown_wrongly,
    verified,
)
from testbed.waiting import BOUND
from validator.evidence import CannotVerifyError, verify_evidence

STRANGER = Signer.from_key(b"\x09" * 32)


async def cannot_verify(bundle: EvidenceBundle, commitment: CommittedWork, context: Context) -> bool:
    with pytest.raises(CannotVerifyError):
        await verified(bundle, commitment, context)
    return True


@pytest.mark.parametrize(
    "rows",
    [
        changed(4, budget=9),
        changed(4, prompt_tokens=honest_rows()[4].prompt_tokens[1:]),
        changed(4, logprobs=honest_rows()[4].logprobs + 9),
        changed(4, finish_reason="length"),
        changed(5, task_reward=1_000_000),
    ],
    ids=["wrong_draw", "wrong_prompt", "out_of_bounds", "wrong_termination", "wrong_reward"],
)
async def test_static_finding_is_confirmed(rows: list[Rollout]) -> None:
    finding = check_file(rows, committed(rows), drawn(), rules())
    assert finding is not None
    assert finding.position is not None
    bundle, commitment = accuse(rows, finding, finding.position)
    inspection = await verified(bundle, commitment)
    assert (inspection.guilty, inspection.finding) == (True, finding)


@pytest.mark.parametrize("reason", ["wrong_reward", "malformed"])
async def test_rescoring_does_not_block_the_event_loop(reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validator keeps following the chain while a stranger's programs run, perhaps for minutes."""
    rows, moved = honest_rows(), threading.Event()

    def score(self: Scorers, manifest: EnvironmentManifest, task: Task, completion: str) -> Score:
        assert moved.wait(BOUND), "the event loop stands still"
        return plain(self, manifest, task, completion)

    plain = Scorers.score
    monkeypatch.setattr(Scorers, "score", score)
    data, commitment = write_rollouts(rows), committed(rows)
    inspection = Inspection(Finding(reason, 4), rollouts=rows, rows=(4,), upload=upload_of(data, commitment))
    bundle = make_bundle(rules(), commitment, inspection, accuser=ACCUSER)
    context = Context(files={content_hash(data): data})
    asyncio.get_running_loop().call_later(0.1, moved.set)
    assert (await verified(bundle, commitment, context)).guilty is False


async def test_honest_rows_never_convict() -> None:
    rows = honest_rows()
    for reason in ("wrong_draw", "wrong_prompt", "out_of_bounds", "wrong_termination", "wrong_reward"):
        bundle, commitment = accuse(rows, Finding(reason, 4), 4)
        assert (await verified(bundle, commitment)).guilty is False


async def test_a_replay_convicts_only_beyond_the_accusing_threshold() -> None:
    rows = honest_rows()
    bundle, commitment = accuse(rows, sampling_mismatch(7), 7, 2)
    assert (await verified(bundle, commitment)).guilty is False

    beyond = Context(findings=lambda _, rows: [None, *(sampling_mismatch(row.position) for row in rows[1:])])
    inspection = await verified(bundle, commitment, beyond)
    assert (inspection.guilty, inspection.finding, beyond.replayed) == (True, sampling_mismatch(2), 2)

    between = Context(findings=lambda _, rows: [sampling_mismatch(row.position, accuse=False) for row in rows])
    assert (await verified(bundle, commitment, between)).guilty is False


async def test_juror_without_a_replay_abstains() -> None:
    bundle, commitment = accuse(honest_rows(), sampling_mismatch(7), 7)
    assert await cannot_verify(bundle, commitment, Context(down=True))


async def test_rows_that_fail_a_static_check_are_not_replayed() -> None:
    context = Context()
    rows = changed(7, completion_tokens=honest_rows()[7].completion_tokens + 10_000)
    bundle, commitment = accuse(rows, sampling_mismatch(7), 7)
    assert (await verified(bundle, commitment, context)).guilty is True
    assert context.replayed == 0


async def test_rows_of_another_commitment_do_not_convict() -> None:
    bad = changed(4, budget=9)
    bundle, _ = accuse(bad, Finding("wrong_draw", 4), 4)
    honest = committed(honest_rows())
    inspection = await verified(bundle.model_copy(update={"root": "0x" + honest.root.hex()}), honest)
    assert not inspection.guilty
    assert inspection.why == "the rows shown do not count: row 4 is not under the committed root"
    assert "another commitment" in (await verified(bundle, honest)).why


@pytest.mark.parametrize("name", ["chain_id", "runs", "run", "step", "node", "index", "root"])
async def test_every_part_of_the_name_counts(name: str) -> None:
    bundle, commitment = accuse(changed(4, budget=9), Finding("wrong_draw", 4), 4)
    assert (await verified(bundle, commitment)).guilty is True
    value = getattr(bundle, name)
    other = value + 1 if isinstance(value, int) else value[:-1] + ("1" if value[-1] != "1" else "2")
    assert (await verified(bundle.model_copy(update={name: other}), commitment)).guilty is False


async def test_a_committed_row_beyond_the_commitment_is_malformed() -> None:
    rows = honest_rows()
    rows[11] = replace(rows[11], position=12, group=3, sample=0)
    bundle, commitment = accuse(rows, Finding("malformed", 11), 11)
    bundle = make_bundle(
        rules(), commitment, Inspection(Finding("wrong_draw", 11), rollouts=rows, rows=(11,)), accuser=ACCUSER
    )
    inspection = await verified(bundle, commitment)
    assert inspection.guilty is True
    assert inspection.finding is not None
    assert inspection.finding.reason == "malformed"


async def test_made_up_rows_and_proofs_do_not_convict() -> None:
    bundle, commitment = accuse(changed(4, budget=9), Finding("wrong_draw", 4), 4)
    for changes in (
        {"rows": ""},
        {"rows": "no base64"},
        {"rows": base64.b64encode(b"no parquet").decode()},
        {"proofs": []},
        {"proofs": [*bundle.proofs, *bundle.proofs]},
        {"proofs": [[]]},
        {"proofs": [bundle.proofs[0][::-1]]},
    ):
        assert (await verified(bundle.model_copy(update=changes), commitment)).guilty is False, changes


async def test_a_malformed_file_is_the_nodes_if_the_node_signed_it() -> None:
    commitment, data = committed(honest_rows()), b"PAR1 not a file PAR1"
    finding = Finding("malformed", detail="no")
    bundle = make_bundle(rules(), commitment, Inspection(finding, upload=upload_of(data, commitment)), accuser=ACCUSER)
    context = Context(files={content_hash(data): data})
    inspection = await verified(bundle, commitment, context)
    assert inspection.guilty is True
    assert "malformed: not a rollout file" in inspection.why
    assert await cannot_verify(bundle, commitment, Context())
    assert await cannot_verify(bundle, commitment, Context(down=True))

    framed = {
        "no upload": None,
        "signed by a stranger": upload_of(data, commitment, node=STRANGER),
        "no receipt of the run's storage": upload_of(data, commitment, storage=STRANGER),
        "an upload for another index": upload_of(data, replace(commitment, index=6)),
    }
    for what, upload in framed.items():
        bundle = make_bundle(rules(), commitment, Inspection(finding, upload=upload), accuser=ACCUSER)
        assert (await verified(bundle, commitment, context)).guilty is False, what


@pytest.mark.parametrize("column", ["prompt_tokens", "completion_tokens", "logprobs", "proof"])
async def test_a_row_too_large_to_show_convicts_all_the_same(column: str) -> None:
    noise = np.random.default_rng(1).bytes(MAX_ROW_BYTES + 4)
    value = noise if column == "proof" else np.frombuffer(noise, getattr(honest_rows()[4], column).dtype)
    rows = changed(4, budget=9, **{column: value})
    data = write_rollouts(rows)
    finding = check_file(rows, committed(rows), drawn(), rules())
    assert finding is not None
    assert finding.reason == "malformed"
    upload = upload_of(data, committed(rows))
    bundle = make_bundle(
        rules(), committed(rows), Inspection(finding, upload=upload, rollouts=rows, rows=(4,)), accuser=ACCUSER
    )
    context = Context({content_hash(data): data}, read_limits=FileLimits())
    inspection = await verified(bundle, committed(rows), context)
    assert (inspection.guilty, inspection.finding) == (True, finding)


async def test_swapped_data_is_found_again() -> None:
    data = write_rollouts(changed(3, proof=b"other"))
    commitment = committed(honest_rows())
    context = Context(files={content_hash(data): data})
    upload = upload_of(data, commitment)
    bundle = make_bundle(rules(), commitment, Inspection(Finding("wrong_root"), upload=upload), accuser=ACCUSER)
    inspection = await verified(bundle, commitment, context)
    assert inspection.guilty is True
    assert inspection.finding is not None
    assert inspection.finding.reason == "wrong_root"


async def test_good_file_does_not_convict() -> None:
    data, commitment = write_rollouts(honest_rows()), committed(honest_rows())
    context = Context(files={content_hash(data): data})
    for reason in ("malformed", "wrong_root"):
        upload = upload_of(data, commitment)
        bundle = make_bundle(rules(), commitment, Inspection(Finding(reason), upload=upload), accuser=ACCUSER)
        assert (await verified(bundle, commitment, context)).guilty is False


async def test_missing_data_is_cured_by_the_data() -> None:
    data, commitment = write_rollouts(honest_rows()), committed(honest_rows())
    bundle = make_bundle(rules(), commitment, Inspection(Finding("data_missing")), accuser=ACCUSER)
    upload = upload_of(data, commitment)
    there = Context(files={content_hash(data): data}, uploads={commitment.index: upload})
    assert (await verified(bundle, commitment, there)).guilty is False
    assert (await verified(bundle, commitment, Context())).guilty is True
    assert (await verified(bundle, commitment, Context(uploads=there.uploads))).guilty is True
    assert await cannot_verify(bundle, commitment, Context(down=True))
    forged = upload_of(data, commitment, node=STRANGER)
    assert await cannot_verify(bundle, commitment, Context(uploads={commitment.index: forged}))


@pytest.mark.parametrize("text", ["é", "\u0000", "====", "AAA", "AAAA" * 9, "Zm9v\n"])
async def test_malformed_rows_neither_convict_nor_crash_a_juror(text: str) -> None:
    bundle, commitment = accuse(honest_rows(), sampling_mismatch(0), 0)
    inspection = await verified(bundle.model_copy(update={"rows": text}), commitment)
    assert inspection.guilty is False


async def test_evidence_of_another_kind_does_not_convict() -> None:
    bundle, commitment = accuse(changed(4, budget=9), Finding("wrong_draw", 4), 4)
    inspection = await verify_evidence(bundle.to_bytes(), kind_of("malformed"), commitment, Context())
    assert (inspection.guilty, inspection.why) == (False, "the evidence is of wrong_draw, the case of malformed")
    inspection = await verify_evidence(b"no bundle", kind_of("malformed"), commitment, Context())
    assert (inspection.guilty, "not an evidence bundle" in inspection.why) == (False, True)


def test_the_names_in_this_file_are_different_people() -> None:
    assert len({NODE.address, STORAGE.address, STRANGER.address, ACCUSER}) == 4


# --- Tasks


async def test_a_wrong_reward_is_judged_by_the_task_in_the_evidence_and_by_no_other() -> None:
    bundle, commitment = accuse(changed(5, task_reward=1_000_000), Finding("wrong_reward", 5), 5)
    assert (await verified(bundle, commitment)).guilty is True
    for tasks, why in shown_wrongly(bundle.tasks):
        inspection = await verified(bundle.model_copy(update={"tasks": tasks}), commitment)
        assert (inspection.guilty, inspection.finding) == (False, None)
        assert why in inspection.why
        # A juror that has the shard gives the same answer.
        data = bundle.model_copy(update={"tasks": tasks}).to_bytes()
        assert (await verify_evidence(data, kind_of("wrong_reward"), commitment, Context())).why == inspection.why


async def test_an_honest_row_stays_honest_whatever_task_is_shown_for_it() -> None:
    bundle, commitment = accuse(honest_rows(), Finding("wrong_reward", 4), 4)
    assert (await verified(bundle, commitment)).why == "the rows pass every static check"
    for tasks, _ in shown_wrongly(bundle.tasks):
        assert not (await verified(bundle.model_copy(update={"tasks": tasks}), commitment)).guilty


async def test_a_row_that_is_not_of_the_draw_needs_no_task() -> None:
    """Its task may be one that the set does not have."""
    bundle, commitment = accuse(changed(4, task=1 << 31), Finding("wrong_draw", 4), 4)
    assert bundle.tasks == []
    assert (await verified(bundle, commitment)).guilty is True
    bundle, commitment = accuse(changed(4, task=1 << 31), sampling_mismatch(4), 4)
    assert bundle.tasks == []
    inspection = await verified(bundle.model_copy(update={"reason": "wrong_prompt"}), commitment)
    assert inspection.finding is not None
    assert (inspection.guilty, inspection.finding.reason) == (True, "wrong_draw")


class LargeFiles(Context):
    """A run whose files may be large."""

    @property
    def rules(self) -> Rules:
        return replace(rules(), terms=replace(rules().terms, max_completion_tokens=1 << 20, max_prompt_tokens=1 << 20))


async def test_rows_have_no_room_for_a_whole_file() -> None:
    """Compressed evidence costs a juror no more than the largest valid rows."""
    most, size = 2 * MAX_ROWS * MAX_ROW_BYTES, 2 * MAX_ROW_BYTES
    bundle, commitment = accuse(
        [replace(row, proof=bytes(size)) for row in honest_rows()], sampling_mismatch(0), *range(MAX_ROWS)
    )
    assert len(bundle.proofs) == MAX_ROWS
    assert len(bundle.rows) < size // 1000
    assert FileLimits.from_terms(LargeFiles().rules.terms).decoded_bytes > 4 * most
    inspection = await verify_evidence(bundle.to_bytes(), kind_of(bundle.reason), commitment, LargeFiles())
    assert not inspection.guilty
    assert f"at most {most}" in inspection.why


async def test_a_file_is_judged_without_tasks() -> None:
    """The case is about the file; rows that are wrong in it are cases of their own."""
    rows = changed(5, task_reward=1_000_000)
    data, commitment = write_rollouts(rows), committed(rows)
    finding, upload = Finding("malformed"), upload_of(data, commitment)
    bundle = make_bundle(rules(), commitment, Inspection(finding, upload=upload, rollouts=rows), accuser=ACCUSER)
    assert bundle.tasks == []
    inspection = await verified(bundle, commitment, Context(files={content_hash(data): data}))
    assert inspection.why == "the file is well-formed and under the committed root"

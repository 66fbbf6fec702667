"""What an operator may choose: one section per room, every field documented, unknown keys refused.

Order of precedence: command-line flag, `MUSTER_SECTION__KEY` in the environment, the TOML file, the default
(`muster.settings.sources`). Protocol constants are in `muster.constants`; a run's terms are on chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from muster.constants import CHAIN_ANVIL, MAX_ACCEPTED, MAX_FILE_BYTES, MAX_LORA_RANK
from muster.settings.recipes import RECIPES, LengthUnit, Normaliser, OldLogprobs, RatioLevel, RecipeName

Matmul = Literal["native", "float32"]
MatmulSetting = Literal["auto", Matmul]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*", mode="after")
    @classmethod
    def _expand_home(cls, value: Any) -> Any:
        """Expand ~ at the beginning of a path, as a shell does."""
        try:
            return value.expanduser() if isinstance(value, Path) else value
        except RuntimeError as error:  # ~somebody
            raise ValueError(f"cannot expand {value.parts[0]}: no such user") from error


class ChainSettings(Section):
    rpc_url: str = "http://127.0.0.1:8545"
    """JSON-RPC endpoint."""
    chain_id: int = CHAIN_ANVIL
    """Chain the endpoint must serve; another one is an error."""
    addresses: Path = Path(".muster/addresses.json")
    """Address book written by the deployment."""
    guardian: str = Field(default="", pattern=r"^(0x[0-9a-fA-F]{40})?$")
    """Who may pause new commitments for three days, of a deployment made with these settings; empty: the deployer."""
    block_explorer_url: str = Field(default="", pattern=r"^(https?://[^\s\"'<>]+)?$", max_length=200)
    """Block explorer to which the run's page links transactions and addresses; empty: none."""
    confirmations: int = Field(default=0, ge=0, le=1000)
    """Blocks on top of an event before it is acted on."""
    poll_seconds: float = Field(default=0.5, gt=0, le=60)
    """Pause between two polls of the chain."""
    timeout_seconds: float = Field(default=30, gt=0, le=600)
    """Longest wait for an answer or for a transaction to be mined."""
    dearest_transaction: float = Field(default=0.05, gt=0, le=100)
    """Ether that one transaction may cost: its gas limit times its highest fee, both as the endpoint says. A dearer one
    waits."""


class KeySettings(Section):
    keystore: Path | None = None
    """Keystore v3 file of this process's key."""
    password_file: Path | None = None
    """File with the keystore's password, mode 0600; without it the password is asked for."""
    raw_key_file: Path | None = None
    """File with a raw hex key, mode 0600. Accepted on Anvil (31337) only."""


def _are_networks(value: list[str]) -> list[str]:
    for network in value:
        ip_network(network)  # raises ValueError
    return value


class OrchestratorSettings(Section):
    url: str = "http://127.0.0.1:8600"
    """URL at which clients reach the orchestrator."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = Field(default=8600, ge=0, le=65535)
    """0 takes a free one, which the log names."""
    database_url: str = "sqlite:///.muster/orchestrator.db"
    """sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE (the extra postgres); rebuilt from chain and storage
    when lost."""
    storage_url: str = "file:.muster/storage"
    """Content-addressed files: file:FOLDER, or s3://BUCKET/PREFIX with the AWS_… variables of docs/use/own-a-run.md."""
    hosts: list[str] = []
    """Other names, HOST or HOST:PORT, that requests to this orchestrator may be signed for, besides url's."""
    state_dir: Path = Path(".muster/orchestrator")
    """Uploads under way and the place in the chain; safe to delete while the orchestrator is down."""
    run_folder: Path | None = None
    """Folder with the run's task set, tokenizer and model configuration, offered to newcomers by content hash."""
    batch_groups: int = Field(default=64, ge=1)
    """Groups the trainer puts in a batch; demand is counted in batches of this size."""
    demand_batches: float = Field(default=2, gt=0, le=100)
    """Work is wanted while fewer than this many batches of fresh groups wait for the trainer."""
    uploads_at_once: int = Field(default=256, ge=1, le=1000)
    """Files read at the same time, one of each node; further ones wait, and the slowest give way to them."""
    key_bytes: int = Field(default=8 << 30, ge=MAX_FILE_BYTES)
    """Bytes of one node that are kept for a day: rollouts without a commitment, evidence that no verdict or case names.
    With more, further ones are refused."""
    retention: Literal["forever", "deadlines"] = "forever"
    """deadlines: rollouts, verdicts, grades and evidence are deleted, for good, once the last deadline of their day is
    over; a signed summary of the day stays. docs/decisions/retention.md says when."""
    submissions: Literal["anyone", "members", "nobody"] = "anyone"
    """Whose environments are taken and listed, for the owner of the run to decide about."""
    title: str = Field(default="", max_length=80)
    """What the page calls the run, instead of its number. Text, never markup."""
    about: str = Field(default="", max_length=4000)
    """What the run trains and why, in the owner's words. Text, never markup; empty lines part its paragraphs."""
    explorer_url: str = Field(default="", pattern=r"^(https?://[^\s\"'<>]+)?$", max_length=200)
    """URL of the run's page (muster explorer), to which addresses of pages are sent on; empty: it has none."""
    trusted_proxies: list[str] = []
    """Addresses or networks of reverse proxies in front of it, whose X-Forwarded-For names the address that limits
    count; without them all that a proxy passes on counts as one address's, which gets half of the room at most."""

    _networks = field_validator("trusted_proxies")(_are_networks)

    @field_validator("url")
    @classmethod
    def _is_the_top_of_a_host(cls, value: str) -> str:
        """Refuse a path: requests are signed with theirs, and a proxy that takes a prefix off changes it."""
        if urlsplit(value).path not in ("", "/") or "?" in value:
            raise ValueError("it must be a host's own URL without a path, such as https://muster.example.org")
        return value


class ExplorerSettings(Section):
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = Field(default=8800, ge=0, le=65535)
    """0 takes a free one, which the log names."""
    state_dir: Path = Path(".muster/explorer")
    """Its database, and files that it shows; may be deleted, and is filled again from chain and log."""
    trusted_proxies: list[str] = []
    """Addresses or networks of reverse proxies in front of it, as of the orchestrator."""

    _networks = field_validator("trusted_proxies")(_are_networks)


class WorkerSettings(Section):
    state_dir: Path = Path(".muster/worker")
    """Journal, lock and weights of this worker."""
    auto_claim_hours: float = Field(default=6, ge=0, le=8760)
    """Pay is claimed for the operator once it has been payable for this long; 0: only when the stake covers no more
    commitments, and by muster worker claim."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs that the model is split over; its attention heads must divide evenly."""
    cache_bytes: int = Field(default=0, ge=0)
    """Memory of the engine's key-value cache, which decides how many sequences decode side by side. 0: on a GPU what
    vLLM finds free, else 256 MiB, and no less than two long sequences need."""
    measure_steps: bool = True
    """Before the first commitment of a step, replay some rows as a validator does, and sit the step out where honest
    work of it would be rejected."""
    report_machine: bool = True
    """Tell the orchestrator every two minutes, for the run's page, what this worker runs on, how many tokens a second
    it generates, and how many bytes of weights came from which relay."""


class ValidatorSettings(Section):
    state_dir: Path = Path(".muster/validator")
    """Journal, hash chain and weights of this validator."""
    data_grace_seconds: float = Field(default=120, ge=0)
    """How long a missing file is requested before its commitment is rejected."""
    stagger_seconds: float = Field(default=5, ge=0)
    """Time between two validators' turns to open or to end the same case."""
    auto_claim_hours: float = Field(default=24, ge=0, le=8760)
    """Wages are claimed for the operator once in so many hours; 0: they are not."""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads of a replay; more than there are idle cores is ruinous."""
    report_machine: bool = True
    """Tell the orchestrator, for the run's page, what this validator runs on, and what it received from relays."""


class TrainerSettings(Section):
    recipe: RecipeName = "muster"
    """What all that is not set below begins with: a recipe of docs/use/training.md."""
    state_dir: Path = Path(".muster/trainer")
    """Optimiser state, batches and resumable checkpoints."""
    model: Path = Path(".muster/run/model")
    """Folder of the model the run begins with; its hashes must be those of the run's terms."""
    grade_masters: Path | None = None
    """Secret file that muster tasks seal wrote: the trainer grades a run's private tests by it, and shows each master
    once no work of its epoch can be trained on."""
    max_steps: int = Field(default=0, ge=0)
    """Updates after which training ends, republished weights not counted; 0: training runs until it is stopped."""
    batch_groups: int = Field(default=64, ge=1, le=100_000)
    """Groups that teach something (their task rewards differ) to wait for before a batch is closed."""
    max_files: int = Field(default=16, ge=1, le=MAX_ACCEPTED)
    """Accepted files at which a batch is closed with fewer."""
    batch_wait_seconds: float = Field(default=600, gt=0)
    """After this long, or once the orchestrator asks for no more work and all of it is here, any group that teaches
    something is enough. If none does, the waiting files are given up, for good, and the same weights are published as a
    new step."""
    idle_seconds: float = Field(default=900, gt=0)
    """After this long without accepted work the same weights are published as a new step: new workers start two steps
    after they join, so without republishing an idle run could never resume. Longer than work takes from its commitment
    to its acceptance. While only newcomers wait, the weights are published at once. While other workers could commit
    and none does: half a minute after the last work, two steps in this time."""
    poll_seconds: float = Field(default=0.5, gt=0, le=60)
    """Pause between two polls of accepted work."""
    learning_rate: float = Field(default=3e-4, gt=0, lt=1)
    """AdamW's, after the ramp."""
    warmup_steps: int = Field(default=10, ge=0)
    """Updates over which the learning rate rises linearly."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the gradient's mean."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """AdamW's decay of the gradient's square."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Of matrices only."""
    gradient_clip: float = Field(default=0.1, gt=0)
    """Largest norm of the gradient."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What ranks under torchrun compute in; weights, moments and sums of gradients are float32 either way."""
    activation_checkpointing: bool = False
    """Keep only each layer's input in the forward pass and compute the rest again: less memory, more time."""
    optimiser_steps: int = Field(default=1, ge=1, le=1000)
    """Equal parts that a batch is cut into, one optimiser step each."""
    micro_batch_tokens: int = Field(default=4096, ge=64)
    """Tokens in one forward pass; a longer rollout has one for itself."""
    lora_rank: int = Field(default=0, ge=0, le=MAX_LORA_RANK)
    """Train a low-rank adapter of this rank, which is what travels; 0: all weights are trained."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """What the adapter adds to the weights is multiplied by this over its rank."""
    old_logprobs: OldLogprobs = "auto"
    """What the ratio is taken against: behaviour, the samplers' own log-probabilities, which corrects for staleness and
    for the engine; recomputed, the trainer's before the batch's first optimiser step, which a worker cannot falsify;
    auto, behaviour where what the run's profile tolerates for this model is at most a tenth of the clip, else
    recomputed. An explicit behaviour that tolerates more is refused."""
    ratio: RatioLevel = "token"
    """sequence: the geometric mean of a rollout's ratios stands for each of its tokens."""
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    """Clip of the ratio below 1, and above unless epsilon_high says otherwise."""
    epsilon_high: float = Field(default=0.0, ge=0)
    """Clip of the ratio above 1; 0: the same as epsilon."""
    delta: float = Field(default=4.0, ge=0)
    """Bound of the ratio where the advantage is negative, above 1 + epsilon_high; 0 for none."""
    normaliser: Normaliser = "tokens"
    """What is weighted alike: tokens, every token of the batch; rollouts, every rollout; constant, every token, by the
    longest completion possible."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the model the run began with; above 0 that model is kept in memory too."""
    given_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the cross-entropy on tokens that tools and users gave."""
    mismatch_bound: float = Field(default=1.0, gt=0)
    """Rollouts whose log-probabilities differ from the trainer's by more, in nats per token, are left out."""
    mask_ratio_low: float = Field(default=0.0, ge=0)
    """Mask tokens whose probability by the trainer, over that by the sampler, is below this (IcePop); within the bounds
    this quotient is their weight. Below 1; 0 for no mask, as is mask_ratio_high then."""
    mask_ratio_high: float = Field(default=0.0, ge=0)
    """Mask tokens where that quotient is above this. Above 1; 0 for no mask, as is mask_ratio_low then."""
    mask_probability_difference: float = Field(default=0.0, ge=0, lt=1)
    """Mask tokens whose probabilities by trainer and sampler differ by more; 0 for no mask."""
    mismatch_alarm: float = Field(default=0.1, gt=0)
    """Divergence of the trainer from the samplers, in nats per token, from which on every step logs a warning."""
    length_weight: float = Field(default=0.5, ge=0)
    """What missing the thinking budget costs, in full task rewards per length_unit."""
    length_unit: LengthUnit = "budget"
    """What length_weight counts: budgets missed, or tokens."""
    scale_by_std: bool = True
    """Divide the task part of advantages by the group's standard deviation."""
    scale_length_by_std: bool = False
    """Divide the length part by its own."""
    add_rewards_first: bool = False
    """Add the length part to the task part before anything is divided, as INTELLECT-2 did."""
    eval_every: int = Field(default=10, ge=0)
    """Updates between two held-out scores; the last three are scored besides. 0: no score is taken."""
    eval_tasks: int = Field(default=0, ge=0)
    """Held-out tasks to score; 0 takes all."""

    @model_validator(mode="before")
    @classmethod
    def _of_the_recipe(cls, values: Any) -> Any:
        """Take the recipe's values where none is set."""
        recipe = values.get("recipe") if isinstance(values, Mapping) else None
        return {**RECIPES.get(recipe, {}), **values} if isinstance(recipe, str) else values

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.delta and self.delta <= 1 + (self.epsilon_high or self.epsilon):
            raise ValueError("delta must be above 1 + epsilon_high, or 0 for none")
        low, high = self.mask_ratio_low, self.mask_ratio_high
        if (low or high) and not 0 < low < 1 < high:
            raise ValueError(
                f"mask_ratio_low {low:g} must be below 1 and mask_ratio_high {high:g} above 1, or both 0 for no mask"
            )
        if self.ratio == "sequence" and (high or self.mask_probability_difference):
            raise ValueError('mask_ratio_low, mask_ratio_high and mask_probability_difference need ratio = "token"')
        return self


class ShardcastSettings(Section):
    relays: list[str] = []
    """Base URLs of relays and origins to fetch from; all are used, each for as much as it delivers."""
    role: Literal["origin", "relay"] = "origin"
    """What `python -m muster.shardcast` is: origin serves what the trainer publishes in dir, relay what it fetches."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = Field(default=8700, ge=0, le=65535)
    """0 takes a free one, which the log names."""
    dir: Path = Path(".muster/weights")
    """Folder of versions: where the trainer publishes and the origin serves, or a relay's own."""
    kept_hours: float = Field(default=168, ge=0, le=10_000)
    """Published steps that a newer one replaced less than this ago are kept as well. Evidence about a step needs its
    weights until its nodes may withdraw their stakes."""
    whole_every: int = Field(default=16, ge=0, le=10_000)
    """Published steps that this divides are kept whole, the others as differences once they are old; more are kept
    whole where the differences between would be more than 64, or more than 8 times as large as a step. 0 publishes no
    differences and keeps what is newest whole."""
    upstreams: list[str] = []
    """Base URLs a relay fetches from."""
    cache_bytes: int = Field(default=64 * 1024**3, ge=1)
    """Disk a relay may use."""
    check_chain: bool = False
    """A relay relays only what the chain has as a checkpoint of the run."""
    share: bool = True
    """A worker serves the weights it holds, on host and port, and offers them in the orchestrator's directory. If the
    orchestrator cannot reach it, it stops, and its log says why."""
    url: str = ""
    """Base URL under which others reach what a worker shares; empty: http://host:port."""
    upload_rate: int = Field(default=0, ge=0)
    """Bytes per second that are served to all together; 0 for no bound."""
    download_rate: int = Field(default=0, ge=0)
    """Bytes per second that a fetch receives from all sources together; 0 for no bound."""
    connections: int = Field(default=256, ge=1, le=100_000)
    """Connections served at the same time."""


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level shown on stderr."""
    file: Path | None = None
    """JSON lines of this process, from debug upwards; without it nothing is written to disk."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port on 127.0.0.1 for Prometheus metrics of a process that is no HTTP service; 0 serves none."""


NotificationKind = Literal["rejected", "accused", "fined", "low_gas", "stopped", "claimable", "claimed"]
"""What a node tells its operator: docs/use/keep-it-running.md says when each is sent."""


def check_webhook(url: str) -> str:
    """Return the URL if notifications may be sent to it. Raises ValueError, whose text does not have the URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("it is no URL") from None
    if not host or any(ord(letter) <= 32 or ord(letter) >= 127 for letter in url):
        raise ValueError("it is no URL")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ValueError("it must begin with https://; http:// is for this machine only")
    return url


def is_loopback(host: str) -> bool:
    """Return whether a host of a URL is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class NotifySettings(Section):
    webhook: str = ""
    """URL that receives notifications for the operator, as JSON. Keep it private: its holders can post there. Empty:
    nothing is sent."""
    webhook_file: Path | None = None
    """File with that URL instead, mode 0600."""
    events: list[NotificationKind] = list(get_args(NotificationKind))
    """What is sent: rejected, accused, fined, low_gas, stopped, claimable, claimed."""

    @field_validator("webhook")
    @classmethod
    def _may_be_sent_to(cls, value: str) -> str:
        return check_webhook(value) if value else value


class Settings(Section):
    run: int = Field(default=1, ge=1)
    """The run this process works for."""
    name: str = ""
    """What this process is called in logs and reports, e.g. worker-2; empty means its role."""
    bfloat16_matmul: MatmulSetting = "auto"
    """How a processor multiplies bfloat16: native leaves it to torch and vLLM, float32 multiplies in float32 and rounds
    once. auto takes float32 on x86 without AVX-512. A trainer keeps what its run began with."""
    log: LogSettings = LogSettings()
    notify: NotifySettings = NotifySettings()
    chain: ChainSettings = ChainSettings()
    keys: KeySettings = KeySettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    explorer: ExplorerSettings = ExplorerSettings()
    worker: WorkerSettings = WorkerSettings()
    validator: ValidatorSettings = ValidatorSettings()
    trainer: TrainerSettings = TrainerSettings()
    shardcast: ShardcastSettings = ShardcastSettings()

from .join import CheckedRun as CheckedRun
from .join import fetch_run as fetch_run
from .orchestrator import OrchestratorClient as OrchestratorClient
from .relays import Relays as Relays
from .run_data import CheckpointFetcher as CheckpointFetcher
from .run_data import RunTasks as RunTasks
from .run_data import make_rules as make_rules

from .audit import Audit as Audit
from .audit import audit_file as audit_file
from .audit import find_commitment as find_commitment
from .checks import Finding as Finding
from .profiles import Profile as Profile
from .profiles import known_profile as known_profile
from .rules import CommittedWork as CommittedWork
from .rules import Rules as Rules

"""What LoomDB hands out: frozen records, independent of any session. Times are UTC."""

from datetime import datetime
from typing import Literal

from loomrl.system.files import canonical_json, sha256
from loomrl.system.schema import Document
from loomrl.types import Json


class EnvironmentRecord(Document):
    """A registered environment. `path` is where its code lay when it was registered, for people only."""

    name: str
    version: str
    entry_point: str
    kwargs: Json
    max_episode_steps: int | None
    reward_threshold: float | None
    source_digest: str
    source_roots: list[str]
    path: str | None
    created: datetime


class SnapshotRecord(Document):
    """One snapshot as it is listed: its digest, the name and version of its environment, and when it was recorded."""

    digest: str
    name: str
    version: str
    created: datetime


class LineageEdge(Document):
    """One statement of the lineage graph: `subject` - `predicate` - `object`, both nodes written `kind:id`."""

    subject: str
    predicate: str
    object: str
    created: datetime


class Deployment(Document):
    """The record of a version that took a role, such as `champion`."""

    policy: str
    version: str
    role: str
    run_id: str | None  # the run, or command, that gave it the role
    reason: str
    created: datetime  # when it took the role


class Approval(Document):
    """A decision asked of a person; `approved` is None while it is open."""

    run_id: str
    policy: str
    version: str
    requested: datetime
    approved: bool | None = None
    person: str | None = None
    reason: str | None = None
    decided: datetime | None = None

    @property
    def state(self) -> Literal["waiting", "approved", "rejected"]:
        """`waiting` until somebody decides, then `approved` or `rejected`."""
        return "waiting" if self.approved is None else "approved" if self.approved else "rejected"


class AuditAnchor(Document):
    """One statement about audit chains. `digest` covers payload and signature, and the next statement names it."""

    number: int  # 1, 2, ...: one list for the whole database
    server: str  # "POLICY/CHAIN"; empty for what concerns all chains
    kind: str
    payload: str  # canonical JSON, see loomrl.storage.audit.anchors.AnchorStatement
    digest: str
    signature: str | None = None  # base64 Ed25519
    keyid: str | None = None


class AuditChain(Document):
    """A chain that LoomDB knows, and its newest anchored head."""

    server: str  # "POLICY/CHAIN"
    host: str | None  # that wrote it; None where that was not kept yet
    segment: str  # of the head, as are these two:
    sequence: int
    digest: str  # the record's hash
    anchored: datetime


class AuditHead(Document):
    """The head of a server's audit chain, its last record's segment, sequence and hash (`digest`), as it was kept
    before there were anchors."""

    server: str
    segment: str
    sequence: int
    digest: str
    signature: str | None = None  # base64 Ed25519, see loomrl.storage.audit.heads
    keyid: str | None = None
    created: datetime


class Control(Document):
    """What a person set for a policy's servers: an override, the plan, the kill switch. `document` None: lifted."""

    policy: str
    name: str  # what it is about: "plan", "kill_switch", "override" or "override/AGENT"
    revision: int  # one more than the newest that was known where it was set: the newest is in force
    document: Json | None
    actor: str  # who set it
    reason: str
    created: datetime  # by the clock of the host where it was set: for people, it orders nothing
    made_from: int | None = None  # while LoomDB has not numbered it: LoomDB's newest revision known where it was set
    replaces: list[str] | None = None  # identities of orders known where it was set; None: set by an older LoomRL

    @property
    def place(self) -> tuple[int, int]:
        """(LoomDB's newest revision known to it, how many orders the host set on top of that), to compare orders by.

        The second is 0, and the first its own revision, once LoomDB has numbered it.
        """
        return (self.revision, 0) if self.made_from is None else (self.made_from, self.revision - self.made_from)

    @property
    def identity(self) -> str:
        """16 hexadecimal digits that name the order: equal in all its copies, however each is numbered."""
        return sha256(canonical_json(self.model_dump(mode="json", exclude=set(_OF_A_COPY))))[:16]

    def is_same_order(self, other: "Control") -> bool:
        """Whether both are copies of one order; these may differ in `revision`, `made_from` and `replaces` alone."""
        return {**vars(self), **_OF_A_COPY} == {**vars(other), **_OF_A_COPY}

    def is_set_with_knowledge_of(self, other: "Control") -> bool:
        """Whether `other` was known where this order was set.

        `replaces` says so. Where an older LoomRL set it, which kept no such list, the order with the lower `place`
        counts as known, unless it was not numbered yet and this one was.
        """
        if self.replaces is not None:
            return other.identity in self.replaces
        if other.replaces is not None and self.identity in other.replaces:
            return False
        return other.place < self.place and (other.made_from is None or self.made_from is not None)


_OF_A_COPY = {"revision": 0, "made_from": None, "replaces": None}  # what may differ between copies of one order


class MonitorEvidence(Document):
    """What one server's monitors have gathered about one version of a policy, as it was shared last."""

    policy: str
    version: str
    server: str
    number: int  # of the server among those of the policy, from 1 on
    revision: int  # of all documents of the policy
    document: Json  # as `loomrl.serving.guardian.exchange` wrote it
    created: datetime


class Event(Document):
    """One event: its kind, its JSON data and its time."""

    kind: str
    data: Json
    created: datetime

"""The stand-in's ledger: each sandbox and each gang is an instance that is billed from its creation to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skysail.cloud.provider import LOST, Ended
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Ledger, Row, Verb

# Tags that name the owner of an instance.
CLAIM, CLUSTER = "claim", "cluster"
_KILLED = 137


class Accounting:
    """Writes the ledger. The owner of an instance is read from its tags."""

    def __init__(self, ledger: Ledger, now: Callable[[], float]) -> None:
        self.ledger = ledger
        self._now = now
        self._end_lost()

    def begin(
        self, instance: str, owner: Mapping[str, str], *, usd: float, seconds: float, regions: list[str], note: str
    ) -> None:
        row = Row(
            at=self._now(),
            verb="create",
            instance=instance,
            claim=owner.get(CLAIM, ""),
            cluster=owner.get(CLUSTER, ""),
            region=",".join(regions),
            usd=usd,
            seconds=seconds,
            note=note,
        )
        self.ledger.write(row)

    def record(self, instance: str, verb: Verb, *, exit_: Ended | None = None, note: str = "") -> None:
        begin, now = self.ledger.beginnings[instance], self._now()
        self.ledger.write(
            Row(
                at=now,
                verb=verb,
                instance=instance,
                claim=begin.claim,
                cluster=begin.cluster,
                usd=billing.cost(begin, now) if verb == "ended" else 0.0,
                exit=exit_,
                note=note,
            )
        )

    def refuse(self, owner: Mapping[str, str], note: str, instance: str = "") -> None:
        """Record a create or terminate call that was refused."""
        row = Row(
            at=self._now(),
            verb="refused",
            instance=instance,
            claim=owner.get(CLAIM, ""),
            cluster=owner.get(CLUSTER, ""),
            note=note,
        )
        self.ledger.write(row)

    def lost_instances(self) -> list[Row]:
        """Return the `create` rows of instances that ended with an earlier process of the stand-in, or in it."""
        return list(self.ledger.beginnings.values())

    def _end_lost(self) -> None:
        for previous in [known for known in self.ledger.instances.values() if known.state != "ended"]:
            if previous.exit is None:
                lost = Ended(code=_KILLED, reason=LOST, message="The stand-in restarted.", ended=self._now())
                self.record(previous.id, "exited", exit_=lost)
            self.record(previous.id, "ended")

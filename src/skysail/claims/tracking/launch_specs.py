"""Launch specs of claims, as the nodes of this process provided them. Never persisted, because they hold secrets."""

from __future__ import annotations

from collections.abc import Callable

from skysail.cloud.account import LaunchSpec


class LaunchSpecs:
    """Launch specs by claim. `changed` gets the name of each claim that receives one."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._specs: dict[str, LaunchSpec] = {}
        self._changed = changed

    def get(self, claim: str) -> LaunchSpec | None:
        return self._specs.get(claim)

    def put(self, spec: LaunchSpec) -> None:
        self._specs[spec.claim] = spec
        self._changed(spec.claim)

    def forget(self, claim: str) -> None:
        self._specs.pop(claim, None)

    def forget_pod(self, pod: str) -> None:
        """Drop the launch specs with this pod, by its UID, also those whose claim was never written."""
        for claim, spec in list(self._specs.items()):
            if any(member.pod.uid == pod for member in spec.members):
                self.forget(claim)

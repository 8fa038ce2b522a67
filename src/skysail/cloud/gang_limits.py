"""Limits that a cloud sets on gangs. Pure."""

from __future__ import annotations

import msgspec


class GangLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a cloud that runs each member of a gang on a whole GPU node.

    `node_gpus` are the GPUs of a node. `other_nodes` are GPU types whose nodes have another number.
    """

    max_members: int
    node_gpus: int
    other_nodes: tuple[tuple[str, int], ...] = ()

    def problem(self, cloud: str, gpu_type: str, gpu_count: int, members: int) -> str:
        """Return why the cloud cannot run a gang of such members, as a sentence with the fix, or an empty string."""
        fix = "or run the gang in the cluster"
        if members > self.max_members:
            return f"{cloud} runs at most {self.max_members} pods together, not {members}: use fewer workers, {fix}."
        needed = self._of_node(gpu_type)
        if gpu_count == needed:
            return ""
        asked = f"{gpu_count} {gpu_type or 'GPUs'}" if gpu_count else "no GPU"
        example = f"{needed} {gpu_type or 'H100'}"
        return (
            f"{cloud} runs a gang on whole GPU nodes only, and each of its {members} pods requests {asked}: request "
            f"{example} for each pod, {fix}."
        )

    def _of_node(self, gpu_type: str) -> int:
        known = {name.casefold(): count for name, count in self.other_nodes}
        return known.get(gpu_type.casefold(), self.node_gpus)

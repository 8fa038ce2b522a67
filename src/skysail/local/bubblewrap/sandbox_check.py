"""Start one container and try to break out of it, before the first pod starts.

Options of bubblewrap do not prove their effect on this kernel: a node whose containers can write to the machine's
kernel settings must not run pods.
"""

from __future__ import annotations

import asyncio
import platform
import time

from skysail.cloud.provider import SecurityContext
from skysail.local.bubblewrap import device_nodes, masked_paths, seccomp_filter
from skysail.local.bubblewrap.container import BwrapContainer, ContainerSpec, Identity
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.isolation import Isolation
from skysail.local.bubblewrap.rootfs import ContainerRoot
from skysail.local.errors import StartFailed

# Opens files for appending and writes nothing, so that the check does no damage on an unprotected machine.
_SCRIPT = """
for file in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/overcommit_memory \\
            /proc/sys/fs/mqueue/msg_max /proc/sysrq-trigger; do
  [ -e "$file" ] && ( : >> "$file" ) 2>/dev/null && echo "$file can be written"
done
for file in {hidden}; do
  [ -f "$file" ] && ( : < "$file" ) 2>/dev/null && echo "$file can be read"
  [ -d "$file" ] && [ -n "$(ls -A "$file" 2>/dev/null)" ] && echo "$file can be read"
done
grep -q "^Seccomp:[[:space:]]*{seccomp}$" /proc/self/status || echo "system calls are not filtered"
grep -q "^NoNewPrivs:[[:space:]]*1$" /proc/self/status || echo "privileges can be gained"
for node in {nodes}; do
  # To the mode that it has.
  chmod "$(stat -c %a "$node")" "$node" 2>/dev/null && echo "$node can be changed"
  ( : >> "$node" ) 2>/dev/null || [ "$node" = /dev/tty ] || echo "$node cannot be written"
done
( : >> /dev/skysail-check ) 2>/dev/null && echo "/dev can be written"
read inside outside number < /proc/self/uid_map
[ "$outside" = "{outside}" ] || [ -z "{outside}" ] || echo "the host id is $outside"
exit 0
"""


async def verify(isolation: Isolation, tools: HostTools) -> None:
    """Run the check. Raises StartFailed with the protection that is missing."""
    ids = isolation.allocate()
    try:
        identity = None
        if ids is not None:
            namespace = await asyncio.to_thread(ids.namespace, 0)
            identity = Identity(first=ids.first, namespace=namespace, staging=ids.staging)
        container_root = ContainerRoot(
            hostname="check", env=(("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),), rights=SecurityContext()
        )
        argv = ("sh", "-c", _script("" if ids is None else str(ids.first)))
        spec = ContainerSpec(root=container_root, argv=argv, identity=identity, max_processes=isolation.max_processes)
        container = await BwrapContainer.start(spec, tools, time.time)
        exit_result = await container.finish()
    finally:
        isolation.release(ids)
    output = container.output.last_line()
    if exit_result.failure or exit_result.code or output:
        message = exit_result.failure or output or f"exit code {exit_result.code}"
        raise StartFailed(
            f"Pods cannot be isolated from this machine: {message}. "
            f"Update bubblewrap and the kernel (this is Linux {platform.release()}), or report this."
        )


def _script(outside: str) -> str:
    filtered = "2" if seccomp_filter.program() is not None else "[0-9]"
    hidden, nodes = " ".join(masked_paths.HIDDEN), " ".join(device_nodes.NODES)
    return _SCRIPT.format(hidden=hidden, nodes=nodes, seccomp=filtered, outside=outside)

"""Files of /proc and /sys that a container must not write or see, as options of bubblewrap. Pure."""

from __future__ import annotations

from typing import Protocol

READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
HIDDEN = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/kmsg"),
    *("/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
)


class Host(Protocol):
    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...


def options(host: Host) -> list[str]:
    """Return the options to put after the ones that mount /proc and /sys.

    A path that the kernel lacks is left out, because bubblewrap fails on it.
    """
    found: list[str] = []
    for path in READ_ONLY:
        if host.exists(path):
            found += ("--ro-bind", path, path)
    for path in HIDDEN:
        if host.is_folder(path):
            found += ("--tmpfs", path, "--remount-ro", path)
        elif host.exists(path):
            # bubblewrap mounts the node with nodev, so opening it fails.
            found += ("--ro-bind", "/dev/null", path)
    return found

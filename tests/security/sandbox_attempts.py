"""Attempts of a hostile pod against its sandbox. A program of its own: imports nothing of ours, and runs in the pod.

argv: the name of a table. Prints one JSON line for each attempt: its name, and why it did not succeed; `null` where it
succeeded. An attempt never does damage where it succeeds: files are opened and not written, ids are set to what they
are, calls have arguments that the kernel refuses later.
"""

import ctypes
import json
import os
import platform
import stat
import sys
import threading

_libc = ctypes.CDLL(None, use_errno=True)
_NEWUSER, _NEWNS = 0x10000000, 0x00020000
_COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]


class Held(Exception):
    """The attempt was without success for a reason that is no error of the kernel."""


def call(number, *arguments):
    """Make a system call by its number. Raises OSError."""
    if _libc.syscall(ctypes.c_long(number), *arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def libc(name, *arguments):
    if getattr(_libc, name)(*arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def writable(path):
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def readable(path):
    """Succeeds if there is anything to read."""
    if os.path.isdir(path):
        if not os.listdir(path):
            raise Held("empty")
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not os.read(descriptor, 1):
            raise Held("empty")
    finally:
        os.close(descriptor)


def kernel_settings():
    """Files of /proc that change the machine's kernel."""
    files = [
        "kernel/core_pattern",
        "kernel/modprobe",
        "kernel/hostname",
        "kernel/domainname",
        "kernel/panic",
        "kernel/printk",
        "kernel/randomize_va_space",
        "kernel/pid_max",
        "kernel/threads-max",
        "kernel/sysrq",
        "kernel/dmesg_restrict",
        "vm/overcommit_memory",
        "vm/drop_caches",
        "vm/swappiness",
        "fs/file-max",
        "fs/suid_dumpable",
        "fs/protected_symlinks",
        "fs/mqueue/msg_max",
        "fs/mqueue/queues_max",
        "fs/inotify/max_user_watches",
        "net/ipv4/ip_forward",
        "net/ipv4/ip_unprivileged_port_start",
        "net/core/somaxconn",
        "user/max_user_namespaces",
    ]
    found = {name: (writable, f"/proc/sys/{name}") for name in files if os.path.exists(f"/proc/sys/{name}")}
    for way in ("/proc/self/root", "/proc/1/root", "/proc/thread-self/root", "/proc/self/task/../root"):
        found[f"core_pattern through {way}"] = (writable, f"{way}/proc/sys/kernel/core_pattern")
    for name in ("sysrq-trigger", "irq/default_smp_affinity", "fs/nfsd"):
        if os.path.isfile(f"/proc/{name}"):
            found[name] = (writable, f"/proc/{name}")
    found["mode"] = (os.chmod, "/proc/sys/kernel/core_pattern", 0o666)
    found["owner"] = (os.chown, "/proc/sys/kernel/core_pattern", os.getuid(), os.getgid())
    found["unmount"] = (libc, "umount2", b"/proc/sys", 2)
    found["remount"] = (libc, "mount", None, b"/proc/sys", None, 0x1000 | 32, None)
    found["a second proc"] = (libc, "mount", b"proc", b"/tmp", b"proc", 0, None)
    found["oom_score_adj"] = (written, "/proc/self/oom_score_adj", "-1")
    return found


def masked_files():
    """Files that tell about the machine's kernel."""
    files = [
        "/proc/interrupts",
        "/proc/kallsyms",
        "/proc/kcore",
        "/proc/keys",
        "/proc/kmsg",
        "/proc/latency_stats",
        "/proc/sched_debug",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/acpi",
        "/proc/asound",
        "/proc/scsi",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
        "/usr/local/etc",
    ]
    present = [path for path in files if os.path.exists(path)]
    found = {path: (readable, path) for path in present}
    for way in ("/proc/self/root", "/proc/1/root", "/proc/thread-self/root"):
        for path in present:
            found[f"{way}{path}"] = (readable, way + path)
    for path in present:
        found[f"unmount {path}"] = (libc, "umount2", path.encode(), 2)
    return found


def device_nodes():
    """Device nodes, which are the machine's own."""
    found = {}
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        path = f"/dev/{name}"
        shown = os.stat(path)
        found[f"mode of {name}"] = (os.chmod, path, stat.S_IMODE(shown.st_mode))
        found[f"owner of {name}"] = (os.chown, path, os.getuid(), os.getgid())
        found[f"time of {name}"] = (os.utime, path, (shown.st_atime, shown.st_mtime))
        found[f"removal of {name}"] = (os.unlink, path)
    for folder in ("/tmp", "/dev/shm", "/", "/dev"):
        for kind, mode in (("block", stat.S_IFBLK), ("char", stat.S_IFCHR)):
            found[f"a {kind} device in {folder}"] = (os.mknod, f"{folder}/node-{kind}", mode | 0o666, os.makedev(8, 0))
    found["a file in /dev"] = (os.mkdir, "/dev/new")
    for name in ("mem", "kmsg", "port", "sda", "vda", "loop-control", "kvm", "fuse", "net/tun"):
        found[f"open {name}"] = (readable, f"/dev/{name}")
    return found


# name: numbers on x86_64 and aarch64, and arguments with which the call does no damage
_CALLS = {
    "acct": ((163, 89), b"/nowhere"),
    "add_key": ((248, 217), b"user", b"name", b"value", 5, -2),
    "bpf": ((321, 280), 0, None, 0),
    "clock_settime": ((227, 112), 0, None),
    "delete_module": ((176, 106), b"none", 0),
    "fanotify_init": ((300, 262), 0, 0),
    "finit_module": ((313, 273), -1, b"", 0),
    "fsopen": ((430, 430), b"tmpfs", 0),
    "init_module": ((175, 105), None, 0, b""),
    "io_uring_setup": ((425, 425), 1, None),
    "kexec_load": ((246, 104), 0, 0, None, -1),
    "keyctl": ((250, 219), 0, -3, 1),
    "mount": ((165, 40), b"none", b"/tmp", b"tmpfs", 0, None),
    "mount_setattr": ((442, 442), -100, b"/", 0, None, 0),
    "move_mount": ((429, 429), -1, b"", -100, b"/", 4),
    "name_to_handle_at": ((303, 264), -100, b"/", None, None, 0),
    "open_by_handle_at": ((304, 265), -1, None, 0),
    "open_tree": ((428, 428), -100, b"/", 1),
    "perf_event_open": ((298, 241), None, 0, -1, -1, 0),
    "pivot_root": ((155, 41), b"/", b"/"),
    "reboot": ((169, 142), 0, 0, 0, None),
    "request_key": ((249, 218), b"user", b"name", None, 0),
    "sethostname": ((170, 161), b"", 0),
    "setns": ((308, 268), -1, 0),
    "settimeofday": ((164, 170), None, None),
    "swapon": ((167, 224), b"/nowhere", 0),
    "syslog": ((103, 116), 10, None, 0),
    "umount2": ((166, 39), b"/tmp", 0),
    "unshare a user namespace": ((272, 97), _NEWUSER),
    "unshare mounts": ((272, 97), _NEWNS),
    "userfaultfd": ((323, 282), 1),
    "socket of the kernel's cryptography": ((41, 198), 38, 5, 0),
    "socket to the hypervisor": ((41, 198), 40, 1, 0),
    "open_tree_attr": ((467, 467), -100, b"/", 1, None, 0),
    "clone a user namespace": ((56, 220), _NEWUSER, None, None, None, None),
    "clone3": ((435, 435), None, 0),
}


def system_calls():
    """Calls that the filter must refuse by EPERM, and clone3 by ENOSYS. Other errors mean that the call got through."""
    return {name: (refused, name) for name in _CALLS}


def refused(name):
    numbers, *arguments = _CALLS[name]
    wanted = 38 if name == "clone3" else 1
    try:
        call(numbers[_COLUMN], *arguments)
    except OSError as error:
        if error.errno == wanted:
            raise Held("filtered") from error


def host_ids():
    """Ids that the pod does not have, and ways to get more."""
    foreign = (65536, 70000, 100000, 1_000_000, 0x70000000, 0x70010000, 0x7FFFFFFF, 0xFFFFFFFE)
    with open("/tmp/own", "w") as file:
        file.write("x")
    found = {}
    for one in foreign:
        found[f"setuid {one}"] = (os.setuid, one)
        found[f"setgid {one}"] = (os.setgid, one)
        found[f"setgroups {one}"] = (os.setgroups, [one])
        found[f"chown {one}"] = (os.chown, "/tmp/own", one, one)
    for name in ("uid_map", "gid_map", "setgroups"):
        found[name] = (written, f"/proc/self/{name}", "0 0 4294967295" if "map" in name else "allow")
    found["a file of the machine's root"] = (os.chmod, "/etc/passwd", 0o644)
    found["a program of the machine's root"] = (os.chown, "/usr/bin/env", os.getuid(), os.getgid())
    return found


def written(path, text):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def memory_of_the_root():
    """Places that are held in memory."""
    found = {}
    for folder in ("/", "/run", "/var/tmp", "/opt", "/srv", "/mnt", "/var/lib", "/var/log", "/home", "/data"):
        found[folder] = (filled, folder, 300 << 20)
    found["/dev/shm"] = (filled, "/dev/shm", (1 << 30) + (16 << 20))
    return found


def filled(folder, size):
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/filled"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
        os.unlink(path)


def processes():
    """More processes and threads than the limit, which is the second argument, as several users of the pod."""
    wanted = int(sys.argv[2]) + 50
    found = {"threads": (threads, wanted), "a higher limit": (raised, wanted)}
    for user in (0, 1, 2, 33, 100, 1000, 1234, 65532, 65534, 65535):
        found[f"forks of user {user}"] = (forks, user, wanted)
    found["forks in new sessions"] = (lambda: forks(0, wanted, own_session=True),)
    return found


def forks(user, wanted, *, own_session=False):
    """Fork in a child that has this user, until it fails. The children end with the pipe."""
    heard, told = os.pipe()
    bomb = os.fork()
    if bomb == 0:
        code = 0
        try:
            if user != os.getuid() and os.getuid() == 0:
                os.setgid(user)
                os.setuid(user)
            for _ in range(wanted):
                if os.fork() == 0:
                    if own_session:
                        os.setsid()
                    os.close(told)
                    os.read(heard, 1)
                    os._exit(0)
        except BlockingIOError:
            code = 1
        except OSError:
            code = 2
        os._exit(code)
    _, status = os.waitpid(bomb, 0)
    os.close(told)
    os.close(heard)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise Held("no more processes" if code == 1 else "no such user")


def threads(wanted):
    stop = threading.Event()
    started = []
    threading.stack_size(65536)
    try:
        for _ in range(wanted):
            thread = threading.Thread(target=stop.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise Held("no more threads") from error
    finally:
        stop.set()
        for thread in started:
            thread.join()


def raised(wanted):
    import resource

    resource.setrlimit(resource.RLIMIT_NPROC, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    forks(0, wanted)


TABLES = (
    kernel_settings,
    masked_files,
    device_nodes,
    system_calls,
    host_ids,
    memory_of_the_root,
    processes,
)


def main(table):
    for name, (attempt, *arguments) in next(each for each in TABLES if each.__name__ == table)().items():
        why = None
        try:
            attempt(*arguments)
        except (OSError, Held, ValueError, OverflowError) as error:
            why = str(error)
        print(json.dumps([name, why]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""System calls around namespaces, each tried in a process of its own."""

import subprocess
import sys

_KEYS = """
import ctypes, os, platform, sys
from skysail.local.cluster import syscalls
libc = ctypes.CDLL(None, use_errno=True)
keyctl, add_key = {"x86_64": (250, 248), "aarch64": (219, 217)}[platform.machine()]

def call(*words):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    result = libc.syscall(*words)
    return result if result >= 0 else os.strerror(ctypes.get_errno())

session = -3
if not isinstance(call(keyctl, 1, None), int):
    print("no keyrings")
    sys.exit()
key = call(add_key, b"user", b"ticket", b"secret", 6, session)
print(call(keyctl, 10, session, b"user", b"ticket", 0) == key)
syscalls.leave_session_keyring()
print(call(keyctl, 10, session, b"user", b"ticket", 0))
print(call(add_key, b"user", b"other", b"x", 1, session))
"""


def test_leave_session_keyring_keys_of_the_caller_cannot_be_read_and_none_added():
    done = subprocess.run([sys.executable, "-c", _KEYS], capture_output=True, text=True, check=True)
    answer = done.stdout.splitlines()
    assert answer in (["no keyrings"], ["True", "Permission denied", "Permission denied"])

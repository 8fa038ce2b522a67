"""Shell scripts that run beside a program in its sandbox. Pure.

Modal can neither signal a program or a command, nor resize a terminal, nor connect to a port that was not declared.
A command in the sandbox can. The image needs a shell, and the tools that each script names.
"""

from __future__ import annotations

from skysail.cloud.modal.launch import CLAIM_VARIABLE

# Set for every command that is started by exec, so that its processes can be found.
EXEC_VARIABLE = "SKYSAIL_EXEC"
# Written by a relay when it is connected.
CONNECTED = b"+"
REFUSED_CODE = 111
NO_TOOL_CODE = 127

# Prints the numbers of processes with a variable, lowest first. Needs ls, grep, sort and tr.
_FIND = (
    "find_processes() { for p in $(ls /proc | grep -E '^[0-9]+$' | sort -n); do "
    "tr '\\0' '\\n' 2>/dev/null </proc/$p/environ | grep -qxF \"$1\" && echo $p; done 2>/dev/null; }\n"
)
_RELAY = """
import os, socket, sys, threading
try:
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
except OSError:
    try:
        s = socket.create_connection(("::1", int(sys.argv[1])), 10)
    except OSError:
        sys.exit(111)
s.settimeout(None)
os.write(1, b"+")
def send():
    while data := os.read(0, 65536):
        s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := s.recv(65536):
    while data:
        data = data[os.write(1, data):]
"""
_DIAL = """
command -v python3 >/dev/null 2>&1 && exec python3 -c "$2" "$1"
h=$(printf %04X "$1")
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qE "^ *[0-9]+: [0-9A-F]+:$h [0-9A-F]+:0000 0A " || exit 111
command -v nc >/dev/null 2>&1 && printf + && exec nc 127.0.0.1 "$1"
command -v socat >/dev/null 2>&1 && printf + && exec socat - "TCP:127.0.0.1:$1"
exit 127
"""


def stop_program(claim: str) -> tuple[str, ...]:
    """Return a command that sends SIGTERM to the program of the sandbox: the first process with the claim."""
    script = f'{_FIND}p=$(find_processes "$1" | head -n 1); [ -n "$p" ] && kill -TERM "$p"'
    return "sh", "-c", script, "sh", f"{CLAIM_VARIABLE}={claim}"


def signal_exec(nonce: str, signal: str) -> tuple[str, ...]:
    """Return a command that signals every process of an exec."""
    script = f'{_FIND}for p in $(find_processes "$1"); do kill -{signal} "$p" 2>/dev/null; done; true'
    return "sh", "-c", script, "sh", f"{EXEC_VARIABLE}={nonce}"


def resize_exec(nonce: str, width: int, height: int) -> tuple[str, ...]:
    """Return a command that resizes the terminal of an exec. Needs stty."""
    script = f'{_FIND}p=$(find_processes "$1" | head -n 1); [ -n "$p" ] && stty cols "$2" rows "$3" </proc/$p/fd/0'
    return "sh", "-c", script, "sh", f"{EXEC_VARIABLE}={nonce}", str(width), str(height)


def relay(port: int) -> tuple[str, ...]:
    """Return a command that copies its input and output to a port. Needs python3, nc or socat."""
    return "sh", "-c", _DIAL, "sh", str(port), _RELAY

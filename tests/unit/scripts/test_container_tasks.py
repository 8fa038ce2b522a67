"""Tasks with Docker and kind."""

from __future__ import annotations

from scripts import container_tasks


def test_buildx_without_platforms_builds_for_amd64_only(monkeypatch):
    seen: list[tuple[str, ...]] = []
    monkeypatch.delenv("PLATFORMS", raising=False)
    monkeypatch.setattr(container_tasks, "run", lambda *words: seen.append(words))
    container_tasks.docker_buildx()
    assert "--platform=linux/amd64" in seen[0]

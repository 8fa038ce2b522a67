"""One contestant in a process of its own, so that what the process uses is what the contestant uses."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

import msgspec

from bench import process
from bench.clients.measure import Contestant, measure
from bench.size import Size
from skysail.kube.cache.gc_tuning import GcTuner

SKYSAIL, KOPF_TUNED, KOPF_DEFAULT = CONTESTANTS = ("Skysail", "Kopf tuned", "Kopf default")


async def _run(name: str, url: str, size: Size) -> None:
    contestant = _contestant(name, url, size)
    figures = await measure(contestant, url, size)
    sys.stdout.buffer.write(msgspec.json.encode(figures))
    sys.stdout.flush()
    await contestant.stop()


def _contestant(name: str, url: str, size: Size) -> Contestant:
    """A framework is imported only where it is measured: memory is one of the figures."""
    if name == SKYSAIL:
        from bench.clients.with_skysail import WithSkysail

        return WithSkysail(url, size, GcTuner())
    from bench.clients.with_kopf import WithKopf

    return WithKopf(url, size, GcTuner(), is_tuned=name == KOPF_TUNED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("url", help="the replay server")
    parser.add_argument("size", help="a Size, as JSON")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    process.pin(process.CLIENT_CORE)
    asyncio.run(_run(arguments.contestant, arguments.url, msgspec.json.decode(arguments.size, type=Size)))


if __name__ == "__main__":
    main()

"""Simulated accounts that pretend, served on the socket of the home. One counts how often it is asked for its list.

usage: python -m bench.clouds_account HOME
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from skysail.app import simulated_clouds
from skysail.cloud.account import Inventory
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.http.server import serve
from skysail.cloud.simulated.ledger import Ledger
from skysail.cloud.simulated.vendors import MODAL, RUNPOD
from skysail.local.cluster.home import Home


def ledger(home: Home) -> Path:
    return home.root / "bench-modal.jsonl"


def listings(home: Home) -> Path:
    """As many bytes as there were listings."""
    return home.root / "bench-listings"


class _Counting(SimulatedAccount):
    counter: Path

    async def list(self) -> Inventory:
        with self.counter.open("ab") as file:
            file.write(b".")
        return await super().list()


async def main(home: Home) -> None:
    account = _Counting(MODAL, Ledger.open(ledger(home), mark="bench"), now=time.time)
    account.counter = listings(home)
    other = SimulatedAccount(RUNPOD, Ledger(), now=time.time)
    runner = await serve([account, other], simulated_clouds.token(home), home.simulated_clouds)
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        await account.close()
        await other.close()


if __name__ == "__main__":
    asyncio.run(main(Home(Path(sys.argv[1]))))

"""Prices and delays of each simulated cloud. The prices are list prices of 2026-08 and are never charged."""

from __future__ import annotations

import msgspec

from skysail.cloud.account import GpuRequest, Timings
from skysail.cloud.errors import Rejected


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated vendor. Times are in seconds.

    `start`: delay until the program of a new instance runs. `lag`: a new instance is missing from listings this long.
    `run`: duration of a fake program. `lingers`: the instance is billed after its program has ended, until it is
    terminated. `remembers`: an ended instance is still shown this long. `usd_per_hour`: price without a GPU.
    """

    name: str
    region: str = "simulated"
    usd_per_hour: float = 0.10
    gpus: dict[str, float] = {}
    start: float = 2.0
    run: float = 10.0
    lag: float = 0.0
    lingers: bool = False
    remembers: float = 3600.0
    terms: Timings = Timings(create_timeout=60.0)

    def price(self, gpu: GpuRequest | None, members: int = 1) -> float:
        """Return US dollars per hour. Without a GPU type, the cheapest counts.

        Raises `Rejected` if the vendor does not have the GPU type.
        """
        if gpu is None:
            return self.usd_per_hour * members
        usd = self._gpu_price(gpu.type) if gpu.type else min(self.gpus.values(), default=0.0)
        return round(usd * gpu.count * members, 6)

    def _gpu_price(self, type_: str) -> float:
        """Return US dollars per hour of one GPU. Types are the cloud's own names, case-insensitive."""
        prices = {name.casefold(): usd for name, usd in self.gpus.items()}
        if type_.casefold() not in prices:
            raise Rejected(
                "UnknownGpu",
                f"The simulated {self.name} has no GPU {type_}: use one of {', '.join(self.gpus) or 'none'}.",
            )
        return prices[type_.casefold()]


MODAL = Vendor(
    name="modal",
    gpus={"T4": 0.59, "L4": 0.80, "A10": 1.10, "L40S": 1.95, "A100-40GB": 2.10, "A100-80GB": 2.50, "H100": 3.95},
)
RUNPOD = Vendor(
    name="runpod",
    usd_per_hour=0.06,
    gpus={
        "NVIDIA A40": 0.44,
        "NVIDIA L4": 0.49,
        "NVIDIA GeForce RTX 4090": 0.74,
        "NVIDIA A100 80GB PCIe": 1.39,
        "NVIDIA H100 80GB HBM3": 3.29,
    },
    start=4.0,
    lag=3.0,
    lingers=True,
    terms=Timings(poll_interval=10.0, visibility_delay=120.0, create_timeout=60.0),
)
VENDORS = {vendor.name: vendor for vendor in (MODAL, RUNPOD)}

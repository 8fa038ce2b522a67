"""Prices and delays of each simulated cloud. The prices are list prices of 2026-08 and are never charged."""

from __future__ import annotations

import msgspec

from skysail.cloud.account import GpuRequest, Timings
from skysail.cloud.errors import Rejected
from skysail.cloud.offers import Offer


class Machine(msgspec.Struct, frozen=True):
    """One GPU type: its memory in GiB, its price in US dollars per hour, and other names that users write for it."""

    gpu_type: str
    gpu_memory: int
    usd_per_hour: float
    aliases: tuple[str, ...] = ()
    cloud_type: str = ""


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated vendor. Times are in seconds.

    `start`: delay until the program of a new instance runs. `lag`: a new instance is missing from listings this long.
    `run`: duration of a fake program. `lingers`: the instance is billed after its program has ended, until it is
    terminated. `remembers`: an ended instance is still shown this long. `usd_per_hour`: price without a GPU.
    `private_network`: the members of a gang reach each other.
    """

    name: str
    region: str = "simulated"
    usd_per_hour: float = 0.10
    machines: tuple[Machine, ...] = ()
    start: float = 2.0
    run: float = 10.0
    lag: float = 0.0
    lingers: bool = False
    remembers: float = 3600.0
    terms: Timings = Timings(create_timeout=60.0)
    private_network: bool = False

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Return all machines as offers, the one without GPUs first."""
        return (
            Offer(provider=self.name, usd_per_hour=self.usd_per_hour, stock="High", region=self.region),
            *(
                Offer(
                    provider=self.name,
                    gpu_type=machine.gpu_type,
                    aliases=machine.aliases,
                    gpu_memory=machine.gpu_memory,
                    usd_per_hour=machine.usd_per_hour,
                    stock="High",
                    region=self.region,
                    cloud_type=machine.cloud_type,
                )
                for machine in self.machines
            ),
        )

    def price(self, gpu: GpuRequest | None, members: int = 1) -> float:
        """Return US dollars per hour, of the cheapest type if the cloud may choose.

        Raises `Rejected` for a GPU type that the cloud does not have.
        """
        if gpu is None:
            return self.usd_per_hour * members
        machine = self._machine(gpu.type) if gpu.type else min(self.machines, key=lambda machine: machine.usd_per_hour)
        return round(machine.usd_per_hour * gpu.count * members, 6)

    def check_place(self, gpu: GpuRequest | None, region: str, cloud_type: str) -> None:
        """Raise `Rejected` for a region or a tier that the cloud does not have."""
        if region not in {"", self.region}:
            raise Rejected("UnknownRegion", f"The simulated {self.name} has no region {region}: ask for {self.region}.")
        tier = self._machine(gpu.type).cloud_type if gpu is not None and gpu.type else ""
        if cloud_type not in {"", tier}:
            have = f"ask for {tier}." if tier else "leave it empty."
            raise Rejected("UnknownCloudType", f"The simulated {self.name} has no tier {cloud_type} of it: {have}")

    def _machine(self, gpu_type: str) -> Machine:
        """Return the machine with this GPU type, by the cloud's name or an alias. Case does not matter."""
        for machine in self.machines:
            if gpu_type.casefold() in {name.casefold() for name in (machine.gpu_type, *machine.aliases)}:
                return machine
        names = ", ".join(machine.gpu_type for machine in self.machines)
        raise Rejected("UnknownGpu", f"The simulated {self.name} has no GPU {gpu_type}: use one of {names}.")


MODAL = Vendor(
    name="modal",
    private_network=True,
    machines=(
        Machine("T4", 16, 0.59),
        Machine("L4", 24, 0.80),
        Machine("A10", 24, 1.10, aliases=("A10G",)),
        Machine("L40S", 48, 1.95),
        Machine("A100-40GB", 40, 2.10, aliases=("A100",)),
        Machine("A100-80GB", 80, 2.50),
        Machine("H100", 80, 3.95, aliases=("H100!",)),
    ),
)
RUNPOD = Vendor(
    name="runpod",
    usd_per_hour=0.06,
    machines=(
        Machine("NVIDIA A40", 48, 0.44, aliases=("A40",), cloud_type="SECURE"),
        Machine("NVIDIA L4", 24, 0.49, aliases=("L4",), cloud_type="SECURE"),
        Machine("NVIDIA GeForce RTX 4090", 24, 0.74, aliases=("RTX 4090", "4090"), cloud_type="SECURE"),
        Machine("NVIDIA A100 80GB PCIe", 80, 1.39, aliases=("A100", "A100-80GB"), cloud_type="SECURE"),
        Machine("NVIDIA H100 80GB HBM3", 80, 3.29, aliases=("H100", "H100-80GB"), cloud_type="SECURE"),
    ),
    start=4.0,
    lag=3.0,
    lingers=True,
    terms=Timings(poll_interval=10.0, visibility_delay=120.0, create_timeout=60.0),
)
VENDORS = {vendor.name: vendor for vendor in (MODAL, RUNPOD)}

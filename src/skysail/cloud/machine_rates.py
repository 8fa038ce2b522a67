"""Rates by which a cloud bills CPU and memory. They are published with the offers. Pure."""

from __future__ import annotations

import msgspec


class CoreRates(msgspec.Struct, frozen=True, kw_only=True, tag="cores"):
    """A cloud that bills cores and memory beside GPUs.

    Prices are in US dollars per hour of a physical core and of a GiB. `default_cores` and `default_gib` are the upper
    bounds of a machine whose container has neither limits nor requests.
    `regions`: multiplier by region. An offer that names a region has the multiplier in its GPU price already. For
    another offer, the launch option of the name `region_option` may name one.
    A launch with the option of the name `app_option` is a web App, whose containers have prices of their own.
    """

    usd_per_core: float
    usd_per_gib: float
    threads_per_core: int
    min_cores: float
    default_cores: float
    default_gib: float
    regions: dict[str, float] = {}
    region_option: str = ""
    app_option: str = ""
    app_usd_per_core: float = 0.0
    app_usd_per_gib: float = 0.0


class Flavor(msgspec.Struct, frozen=True, kw_only=True):
    """A type of machine without GPU, with a number of cores that is a power of two.

    `regions`: where it is offered, empty if the cloud does not say.
    """

    id: str
    usd_per_vcpu: float
    min_vcpus: int
    max_vcpus: int
    gb_per_vcpu: float
    regions: tuple[str, ...] = ()


class FlavorRates(msgspec.Struct, frozen=True, kw_only=True, tag="flavors"):
    """A cloud whose machines without GPU have fixed sizes. The price of a GPU contains CPU and memory.

    `volumes`: region of each network volume. A launch with a volume, which the launch option of the name
    `volume_option` names, can only run there.
    Disks are billed beside the machine: the launch options of the names `disk_options` are their sizes in GB.
    """

    flavors: tuple[Flavor, ...]
    volumes: dict[str, str] = {}
    volume_option: str = ""
    disk_options: tuple[str, ...] = ()
    usd_per_disk_gb: float = 0.0


MachineRates = CoreRates | FlavorRates

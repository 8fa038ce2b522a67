"""Catalogue of the stand-in: machines, list prices per tier of 2026-08, and stock per data center."""

from __future__ import annotations

import msgspec

DATA_CENTERS = ("EU-RO-1", "US-KS-2", "US-TX-3")
_LEVELS = ("NONE", "LOW", "MEDIUM", "HIGH")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU type. A price of 0 means that the tier does not offer it."""

    id: str
    name: str
    memory: int
    secure: float
    community: float = 0.0
    manufacturer: str = "NVIDIA"
    max_count: int = 8
    cuda: tuple[str, ...] = ("12.4", "12.6", "12.8")

    def price(self, cloud: str) -> float:
        return self.secure if cloud == "SECURE" else self.community


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    group: str
    per_vcpu: float
    ram_per_vcpu: float = 4.0
    max_vcpu: int = 32


GPUS = (
    Gpu(id="NVIDIA RTX A4000", name="RTX A4000", memory=16, secure=0.25, community=0.17),
    Gpu(id="NVIDIA RTX A5000", name="RTX A5000", memory=24, secure=0.27, community=0.16),
    Gpu(id="NVIDIA A40", name="A40", memory=48, secure=0.44),
    Gpu(id="NVIDIA L4", name="L4", memory=24, secure=0.49),
    Gpu(id="NVIDIA GeForce RTX 4090", name="RTX 4090", memory=24, secure=0.74, community=0.34),
    Gpu(id="NVIDIA L40S", name="L40S", memory=48, secure=0.99),
    Gpu(id="NVIDIA A100 80GB PCIe", name="A100 PCIe", memory=80, secure=1.39, community=1.19),
    Gpu(id="NVIDIA H100 80GB HBM3", name="H100 SXM", memory=80, secure=3.29, community=2.69),
    Gpu(
        id="NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb",
        name="RTX PRO 6000 MIG 1g.24gb",
        memory=24,
        secure=0.20,
    ),
    Gpu(id="AMD Instinct MI300X OAM", name="MI300X", memory=192, secure=0.10, manufacturer="AMD", cuda=()),
)
CPUS = (
    Cpu(id="cpu3c", name="Compute-Optimized", group="Gen 3", per_vcpu=0.03, ram_per_vcpu=2.0),
    Cpu(id="cpu5g", name="General-Purpose", group="Gen 5", per_vcpu=0.04),
)


class Catalogue:
    """Catalogue with a stock that tests change. Everything is in stock at first."""

    def __init__(self) -> None:
        self.gpus = {gpu.id: gpu for gpu in GPUS}
        self.cpus = {cpu.id: cpu for cpu in CPUS}
        # Number of free GPUs by type; a type that is missing has any number.
        self.free: dict[str, int] = {}

    def sell_out(self, *ids: str) -> None:
        """Take the stock of these types, or of all of them."""
        for id_ in ids or (*self.gpus, *self.cpus):
            self.free[id_] = 0

    def restock(self) -> None:
        self.free.clear()

    def has(self, id_: str, count: int) -> bool:
        return self.free.get(id_, count) >= count

    def gpu_rows(self, cloud: str, *, with_stock: bool, count: int) -> list[dict[str, object]]:
        return [self._gpu_row(gpu, cloud, with_stock=with_stock, count=count) for gpu in self.gpus.values()]

    def cpu_rows(self, *, with_stock: bool) -> list[dict[str, object]]:
        rows = []
        for cpu in self.cpus.values():
            row: dict[str, object] = {
                "id": cpu.id,
                "name": cpu.name,
                "group": cpu.group,
                "vcpu": {"min": 2, "max": cpu.max_vcpu},
                "ramGbPerVcpu": cpu.ram_per_vcpu,
                "price": {"securePerVcpu": cpu.per_vcpu, "serverlessPerVcpu": cpu.per_vcpu},
            }
            rows.append(row | (self._stock(cpu.id, 1) if with_stock else {}))
        return rows

    def _gpu_row(self, gpu: Gpu, cloud: str, *, with_stock: bool, count: int) -> dict[str, object]:
        row: dict[str, object] = {
            "id": gpu.id,
            "name": gpu.name,
            "pool": None,
            "manufacturer": gpu.manufacturer,
            "memory": gpu.memory,
            "secure": gpu.secure > 0,
            "community": gpu.community > 0,
            "price": {"secure": gpu.secure, "community": gpu.community},
            "maxCount": {"secure": gpu.max_count, "community": gpu.max_count if gpu.community else 0},
        }
        if not with_stock:
            return row
        is_offered = gpu.price(cloud) > 0 and count <= gpu.max_count
        versions = [{"version": version, "available": self.has(gpu.id, count)} for version in gpu.cuda]
        cuda = {"cudaVersions": versions} if versions else {}
        return row | (self._stock(gpu.id, count) if is_offered else {"availability": "NONE"}) | cuda

    def _stock(self, id_: str, count: int) -> dict[str, object]:
        """Return the stock. The service leaves the data centers out if nothing is left anywhere."""
        if not self.has(id_, count):
            return {"availability": "NONE"}
        level = _LEVELS[min(self.free.get(id_, len(_LEVELS)) // count, len(_LEVELS) - 1)]
        centers = [{"id": center, "name": center, "availability": level} for center in DATA_CENTERS]
        return {"availability": level, "dataCenters": centers}

"""List prices of Modal in US dollars, and the price of a sandbox by its resources."""

from __future__ import annotations

from modal_proto import api_pb2

# Per second and GPU, base region.
GPU_PRICES = {
    "T4": 0.000164,
    "L4": 0.000222,
    "A10": 0.000306,
    "A10G": 0.000306,
    "L40S": 0.000542,
    "A100": 0.000583,
    "A100-40GB": 0.000583,
    "A100-80GB": 0.000694,
    "RTX-PRO-6000": 0.000842,
    "H100": 0.001097,
    "H100!": 0.001097,
    "H200": 0.001261,
    "B200": 0.001736,
    "B200+": 0.001736,
}
_MAX_COUNT = 8
_MAX_COUNTS = {"A10": 4, "A10G": 4}
# Per second and physical core, and per second and GiB. Sandboxes cost about three times as much as Functions.
_SANDBOX_CORE, _SANDBOX_GIB = 0.00003942, 0.00000667
_FUNCTION_CORE, _FUNCTION_GIB = 0.0000131, 0.00000222
_DEFAULT_MILLI_CPU, _DEFAULT_MEMORY_MB = 125, 128
_BROAD_REGION, _NARROW_REGION = 1.5, 1.75


def max_gpus(gpu_type: str) -> int:
    return _MAX_COUNTS.get(gpu_type, _MAX_COUNT)


def usd_per_hour(resources: api_pb2.Resources, regions: list[str], *, is_sandbox: bool) -> float:
    """Return the price of the requested resources: real use above the request is not measured here."""
    core, gib = (_SANDBOX_CORE, _SANDBOX_GIB) if is_sandbox else (_FUNCTION_CORE, _FUNCTION_GIB)
    cores = (resources.milli_cpu or _DEFAULT_MILLI_CPU) / 1000
    memory = (resources.memory_mb or _DEFAULT_MEMORY_MB) / 1024
    gpu = resources.gpu_config
    gpus = GPU_PRICES.get(gpu.gpu_type.upper(), 0.0) * gpu.count
    return round((cores * core + memory * gib + gpus) * _multiplier(regions) * 3600, 6)


def rates() -> dict[str, str]:
    """Return the rates of the workspace, as text in US dollars per second."""
    gpus = {f"gpu_{name.lower()}": f"{price:.6f}" for name, price in GPU_PRICES.items()}
    return {
        **gpus,
        "cpu_core": f"{_FUNCTION_CORE:.8f}",
        "memory_gib": f"{_FUNCTION_GIB:.8f}",
        "sandbox_cpu_core": f"{_SANDBOX_CORE:.8f}",
        "sandbox_memory_gib": f"{_SANDBOX_GIB:.8f}",
    }


def _multiplier(regions: list[str]) -> float:
    if not regions:
        return 1.0
    return _NARROW_REGION if all("-" in region for region in regions) else _BROAD_REGION

# /// script
# dependencies = ["jax[cpu]", "numpy"]
# ///
"""Data-parallel training with JAX: the processes form one mesh, and the compiler adds up the gradients."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 300


def main() -> None:
    if "JAX_PROCESS_ID" in os.environ:
        # JAX_COORDINATOR_ADDRESS comes from the TrainingJob, too.
        processes, process = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
        jax.distributed.initialize(num_processes=processes, process_id=process)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    local = np.random.default_rng(jax.process_index()).uniform(-1, 1, (256, 2)).astype("float32")
    split = NamedSharding(mesh, PartitionSpec("data"))
    points = jax.make_array_from_process_local_data(split, local)
    labels = jax.make_array_from_process_local_data(split, local @ np.array([2.0, -1.0], "float32") + 0.5)

    def loss(parameters: dict[str, jax.Array], points: jax.Array, labels: jax.Array) -> jax.Array:
        guess = points @ parameters["weights"] + parameters["bias"]
        return jnp.mean((guess - labels) ** 2)

    @jax.jit
    def step(parameters: dict[str, jax.Array], points: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        slopes = jax.grad(loss)(parameters, points, labels)
        return jax.tree.map(lambda value, slope: value - 0.3 * slope, parameters, slopes)

    parameters = {"weights": jnp.zeros(2), "bias": jnp.zeros(())}
    for _ in range(STEPS):
        parameters = step(parameters, points, labels)
    one, two = np.asarray(parameters["weights"]).round(2) + 0.0
    place = f"process {jax.process_index()} of {jax.process_count()}"
    print(f"{place}: y = {one:.2f} a + {two:.2f} b + {float(parameters['bias']):.2f}", flush=True)


if __name__ == "__main__":
    main()

"""TensorFlow: what the chief and a worker add up is kept by a parameter server."""
# ruff: noqa: T201 (what it prints is what the test reads)

import json
import os
from pathlib import Path

import tensorflow as tf

RANKS = {"chief": 0, "worker": 1}
MINE = Path("/tmp/mine")  # in each pod another one

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
role = resolver.task_type
if role in RANKS:
    numbers = json.loads(Path("/code/numbers.json").read_text())[RANKS[role]]
    MINE.write_text(" ".join(map(str, numbers)))
if role != "chief":
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=role, task_index=resolver.task_id, protocol="grpc"
    ).join()  # for ever: they are ended when the chief is done

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(tf.zeros(len(numbers), tf.float64))


@tf.function
def add():
    """Where it runs, it reads what is there."""
    total.assign_add(tf.strings.to_number(tf.strings.split(tf.io.read_file(str(MINE))), tf.float64))


coordinator.schedule(add)
coordinator.join()
total.assign_add(tf.constant(numbers, tf.float64))
print(f"kept by {total.device}")
print(json.dumps({"rank": RANKS[role], "address": os.environ["POD_IP"], "sum": total.numpy().tolist()}))

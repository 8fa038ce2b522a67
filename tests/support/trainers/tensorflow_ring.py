"""TensorFlow: workers of TF_CONFIG, all-reduce in a ring."""
# ruff: noqa: T201 (what it prints is what the test reads)

import json
import os
from pathlib import Path

import tensorflow as tf

kinds = tf.distribute.experimental
options = kinds.CommunicationOptions(implementation=kinds.CommunicationImplementation.RING)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
mine = json.loads(Path("/code/numbers.json").read_text())[rank]


@tf.function
def add_up():
    def in_replica():
        everybody = tf.distribute.get_replica_context()
        return everybody.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(mine, dtype=tf.float32))

    return strategy.run(in_replica)


total = strategy.experimental_local_results(add_up())[0]
print(json.dumps({"rank": rank, "address": os.environ["POD_IP"], "sum": total.numpy().tolist()}))

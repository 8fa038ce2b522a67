# /// script
# dependencies = ["tensorflow-cpu"]
# ///
"""Data-parallel training with TensorFlow: MultiWorkerMirroredStrategy reads TF_CONFIG of the TrainingJob."""

import json
import os

# Before the import, which reads it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

STEPS = 200


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        slope, offset = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        """Take one step with the mean of the gradients of all workers, and return the mean loss."""

        def replica(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((slope * x + offset - (3 * x + 1)) ** 2)
            context = tf.distribute.get_replica_context()
            gradients = tape.gradient(loss, [slope, offset])
            mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
            slope.assign_sub(0.2 * mean[0])
            offset.assign_sub(0.2 * mean[1])
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica, args=(x,)), axis=None)

    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})
    points = tf.random.stateless_uniform((64,), seed=(1, int(task["index"])), minval=-1.0)
    for _ in range(STEPS):
        loss = step(points)
    workers = strategy.num_replicas_in_sync
    print(
        f"worker {task['index']} of {workers}: y = {slope.numpy():.2f} x + {offset.numpy():.2f}, loss {loss:.4f}",
        flush=True,
    )


if __name__ == "__main__":
    main()

"""Fit a line by gradient descent, without any package: `skysail train examples/first-training`."""

import argparse
import os

POINTS = [(x / 10, 3 * x / 10 + 1) for x in range(20)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    slope = offset = 0.0
    for _ in range(steps):
        errors = [(slope * x + offset - y, x) for x, y in POINTS]
        slope -= 0.1 * sum(error * x for error, x in errors) / len(POINTS)
        offset -= 0.1 * sum(error for error, _ in errors) / len(POINTS)
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    print(f"rank {rank} of {size}: y = {slope:.2f} x + {offset:.2f} after {steps} steps", flush=True)


if __name__ == "__main__":
    main()

"""Training that survives a crash: it saves a checkpoint every 20 steps and resumes from the newest one.

The first attempt crashes on purpose at step 50.
"""

import json
import os
import sys
from pathlib import Path

STEPS, EVERY, CRASH_AT = 100, 20, 50


def save(folder: Path, step: int, value: float) -> None:
    """Write a checkpoint, and report it when it is complete."""
    part, path = folder / "part", folder / f"step-{step}.json"
    part.write_text(json.dumps({"step": step, "value": value}))
    part.rename(path)
    print(f"skysail-checkpoint step={step} path={path}", flush=True)


def main() -> None:
    folder = Path(os.environ.get("CHECKPOINT_DIR", "."))
    attempt = os.environ.get("TRAINING_ATTEMPT", "0")
    state = {"step": 0, "value": 0.0}
    if resume := os.environ.get("RESUME_FROM"):
        state = json.loads(Path(resume).read_text())
        print(f"attempt {attempt} resumes at step {state['step']}", flush=True)
    step, value = state["step"], state["value"]
    while step < STEPS:
        step, value = step + 1, value + (1 - value) / 10
        if step % EVERY == 0:
            save(folder, step, value)
        if step == CRASH_AT and not resume:
            sys.exit("crash at step 50, on purpose")
    print(f"attempt {attempt} ends at step {step} with {value:.4f}", flush=True)


if __name__ == "__main__":
    main()

from __future__ import annotations

import asyncio

from skysail.local.provider.image_pull_events import PullReporter
from tests.support import virtual_time


def test_steps_are_told_at_a_bounded_rate_and_the_newest_is_not_lost():
    told: list[tuple[float, str, str]] = []
    shown: list[str] = []

    async def test() -> None:
        time = asyncio.get_running_loop().time
        pull_reporter = PullReporter("a:1", lambda reason, note: told.append((time(), reason, note)), shown.append)
        for step in range(40):
            pull_reporter.report(f"step {step}")
            await asyncio.sleep(0.25)
        await asyncio.sleep(20)
        pull_reporter.report("late")
        await asyncio.sleep(6)
        pull_reporter.finish(is_here=True)
        pull_reporter.report("after the end")
        await asyncio.sleep(60)

    virtual_time.run(test())
    assert told == [
        (0.0, "Pulling", "Image a:1 is being built: step 0"),
        (5.0, "Pulling", "step 19"),
        (10.0, "Pulling", "step 39"),
        (35.0, "Pulling", "late"),
        (36.0, "Pulled", "Image a:1 is ready after 36.0 s"),
    ]
    assert shown == ["step 0", "step 19", "step 39", "late", ""]


def test_nothing_is_told_of_an_image_that_is_here_already_or_never_comes():
    told: list[str] = []
    shown: list[str] = []

    async def test() -> None:
        PullReporter("a:1", lambda _, note: told.append(note), shown.append).finish(is_here=True)
        failed = PullReporter("b:1", lambda _, note: told.append(note), shown.append)
        failed.report("begins")
        failed.finish(is_here=False)

    virtual_time.run(test())
    assert told == ["Image b:1 is being built: begins"]
    assert shown == ["begins", ""]

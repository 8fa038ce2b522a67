from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import NoCapacity
from skysail.cloud.simulated.options import SimulationOptions, parse
from tests.support.virtual_time import run
from tests.unit.cloud.simulated.shop import account, launch_spec


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", SimulationOptions()),
        (" start=20s , run=5m,", SimulationOptions(start=20.0, run=300.0)),
        ("exit=37,preempt=1.5h", SimulationOptions(exit=37, preempt=5400.0)),
        ("lag=250ms,hidden=1s,end=2s", SimulationOptions(lag=0.25, hidden=1.0, end=2.0)),
        ("usd=1.25,no-capacity=2,create=lost-done", SimulationOptions(usd=1.25, no_capacity=2, create="lost-done")),
    ],
)
def test_wishes_are_read(text, want):
    assert parse(text) == want


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("start", "'start' is not one of start=…"),
        ("stat=1s", "'stat=1s' is not one of"),
        ("start=20", "a time such as"),
        ("start=-1s", "a time such as"),
        ("exit=256", "from 0 to 255"),
        ("exit=x", "from 0 to 255"),
        ("exit=²", "from 0 to 255"),
        ("usd=cheap", "US dollars"),
        ("usd=nan", "US dollars"),
        ("usd=-1", "US dollars"),
        (f"start={'9' * 400}h", "a time such as"),
        ("create=empty", "must be one of lost"),
    ],
)
def test_what_cannot_be_read_is_told(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse(text)


@given(st.text(alphabet="startunexi=,-0123456789smh. ", max_size=40))
def test_any_text_is_read_or_complained_about(text):
    try:
        assert isinstance(parse(text), SimulationOptions)
    except ValueError as error:
        assert str(error)  # noqa: PT017 (either is fine)


def test_no_capacity_types_are_separated_by_plus():
    assert parse("no-capacity-types=T4 + NVIDIA L4,start=1s").no_capacity_types == ("T4", "NVIDIA L4")
    with pytest.raises(ValueError, match=r"T4\+L4"):
        parse("no-capacity-types=T4+")


def test_create_of_a_type_without_capacity_by_wish_is_turned_away():
    async def main():
        cloud = account()
        with pytest.raises(NoCapacity):
            await cloud.create(launch_spec("no-capacity-types=a", gpus=GpuRequest("A")))
        await cloud.create(launch_spec("no-capacity-types=a", gpus=GpuRequest("B")))

    run(main())

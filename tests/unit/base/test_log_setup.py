import io
import json
import logging

import pytest

from skysail.base import log_setup


@pytest.fixture
def restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def line(format_: str, level: str = "info", *, error: bool = False) -> str:
    stream = io.StringIO()
    log_setup.configure(level, format_, stream)
    try:
        raise ValueError("broken") if error else KeyError
    except (ValueError, KeyError) as caught:
        info = caught if error else None
    logging.getLogger("test").info("applied", extra={"kind": "Job", "effect": 3}, exc_info=info)
    return stream.getvalue()


@pytest.mark.usefixtures("restored")
def test_json_has_the_event_and_its_fields():
    row = json.loads(line("json"))
    assert (row["message"], row["level"], row["kind"], row["effect"]) == ("applied", "info", "Job", 3)
    assert row["time"].endswith("+00:00")


@pytest.mark.usefixtures("restored")
def test_where_nobody_reads_at_a_terminal_auto_is_json():
    assert json.loads(line("auto"))["message"] == "applied"


@pytest.mark.usefixtures("restored")
def test_text_is_one_readable_line():
    assert line("text").strip().endswith("info    applied kind=Job effect=3")


@pytest.mark.usefixtures("restored")
def test_an_exception_is_shown_in_both():
    assert "ValueError: broken" in json.loads(line("json", error=True))["exception"]
    assert "ValueError: broken" in line("text", error=True)


@pytest.mark.usefixtures("restored")
def test_what_is_below_the_level_is_not_written():
    assert line("json", level="error") == ""

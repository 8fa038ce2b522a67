import msgspec
import pytest
from typer.testing import CliRunner

from skysail.base.errors import UserError
from skysail.cli.main import application


@pytest.fixture(autouse=True)
def without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)


def test_doctor_without_a_token_names_the_variables_and_exits_2():
    result = CliRunner().invoke(application(), ["doctor", "modal"])
    assert result.exit_code == 2
    assert "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET not found" in result.output


def test_doctor_json_has_one_report_per_part():
    result = CliRunner().invoke(application(), ["doctor", "modal", "-o", "json"])
    (report,) = msgspec.json.decode(result.output)
    assert (report["part"], report["checks"][0]["outcome"]) == ("modal", "missing")


def test_doctor_unknown_part_is_an_error_with_the_names():
    result = CliRunner().invoke(application(), ["doctor", "nonsense"])
    assert isinstance(result.exception, UserError)
    assert "modal" in str(result.exception)

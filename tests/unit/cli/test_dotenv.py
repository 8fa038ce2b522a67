from skysail.cli import dotenv

TEXT = """
# a comment
MODAL_TOKEN_ID=ak-1
export MODAL_TOKEN_SECRET = "as 2"
RUNPOD_API_KEY='rp=3'
PATH=/nowhere
MODAL
"""


def test_parse_takes_variables_of_clouds_only():
    assert dotenv.parse(TEXT) == {"MODAL_TOKEN_ID": "ak-1", "MODAL_TOKEN_SECRET": "as 2", "RUNPOD_API_KEY": "rp=3"}


def test_environment_variable_set_wins_over_the_file(tmp_path):
    (tmp_path / ".env").write_text(TEXT)
    found = dotenv.environment({"MODAL_TOKEN_ID": "own", "HOME": "/h"}, tmp_path)
    assert (found["MODAL_TOKEN_ID"], found["MODAL_TOKEN_SECRET"], found["HOME"]) == ("own", "as 2", "/h")


def test_environment_in_a_cluster_ignores_the_file(tmp_path):
    (tmp_path / ".env").write_text(TEXT)
    assert dotenv.environment({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1"
    }


def test_environment_without_a_readable_file_is_unchanged(tmp_path):
    assert dotenv.environment({"A": "1"}, tmp_path) == {"A": "1"}
    (tmp_path / ".env").write_bytes(b"MODAL_X=\xff")
    assert dotenv.environment({"A": "1"}, tmp_path) == {"A": "1"}

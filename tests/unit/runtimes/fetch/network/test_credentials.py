"""Keys of a Secret, as they come into the pod."""

from __future__ import annotations

import pytest

from skysail.runtimes.fetch.network import credentials


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("key", ["AWS_SECRET_ACCESS_KEY", "OCI_PASSWORD", "HTTP_USERNAME", "HTTP_TOKEN"])
def test_the_new_line_at_the_end_of_a_file_is_no_part_of_a_key(key, end):
    """As `kubectl create secret --from-file` takes it over."""
    assert credentials.from_env({f"{credentials.PREFIX}{key}": f"two\nlines {end}", "HTTPS_PROXY": "x"}) == {
        key: "two\nlines "
    }

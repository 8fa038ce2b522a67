from __future__ import annotations

from skysail.local.images.build_progress import Progress


def test_what_uv_says_becomes_steps():
    progress = Progress()
    told = [
        progress.parse(line)
        for line in (
            "Using Python 3.11.7 environment at: x\n",
            "Resolved 30 packages in 1.82s\n",
            "Downloading torch (514MiB)\n",
            "Downloading keras (272.5MiB)\n",
            "Downloading mpmath (6.0MiB)\n",
            "Downloading six (2.0MiB)\n",
            " Downloaded mpmath\n",
            " Downloaded torch\n",
            " Downloaded keras\n",
            " Downloaded six\n",
            "Prepared 4 packages in 52.39s\n",
            "Installed 30 packages in 606ms\n",
            "Bytecode compiled 5783 files in 29.06s\n",
            " + torch==2.15.0\n",
            "\n",
        )
    ]
    assert told == [
        None,
        "Resolved 30 packages in 1.82s",
        "downloaded 0 of 1 large packages; downloading: torch (514MiB)",
        "downloaded 0 of 2 large packages; downloading: torch (514MiB), keras (272.5MiB)",
        "downloaded 0 of 3 large packages; downloading: torch (514MiB), keras (272.5MiB), mpmath (6.0MiB)",
        "downloaded 0 of 4 large packages; downloading: torch (514MiB), keras (272.5MiB), mpmath (6.0MiB) and 1 more",
        "downloaded 1 of 4 large packages; downloading: torch (514MiB), keras (272.5MiB), six (2.0MiB)",
        "downloaded 2 of 4 large packages; downloading: keras (272.5MiB), six (2.0MiB)",
        "downloaded 3 of 4 large packages; downloading: six (2.0MiB)",
        "downloaded 4 of 4 large packages",
        "Prepared 4 packages in 52.39s",
        "Installed 30 packages in 606ms",
        "Bytecode compiled 5783 files in 29.06s",
        None,
        None,
    ]

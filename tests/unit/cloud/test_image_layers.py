"""The search for a shell in layers: every tar that Python writes is read, and damaged ones are an error of ours."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.cloud.image_layers import InvalidLayer, LayerReader, ShellSearch

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
LONG = "usr/share/" + "/".join(["a-folder-with-a-long-name"] * 6) + "/file"


def tar(*members: tuple[str, bytes | str], format_: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file. A text is the target of a symbolic link."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=format_) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                file.addfile(info)
            else:
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return written.getvalue()


def names(content: bytes, step: int, media_type: str = "application/vnd.oci.image.layer.v1.tar") -> list[str]:
    reader = LayerReader(media_type)
    pieces = (content[at : at + step] for at in range(0, len(content), step))
    return [entry.name for piece in pieces for entry in reader.feed(piece)]


def finds_shell(*layers: bytes) -> bool:
    search = ShellSearch()
    for content in layers:
        for entry in LayerReader("application/vnd.docker.image.rootfs.diff.tar").feed(content):
            search.take(entry)
    return search.is_found


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("step", [1, 100, 512, 10_000])
def test_names_are_read_from_pieces_of_any_size(format_, step):
    content = tar(("./bin/echo", b"x" * 700), (LONG, b""), ("etc/passwd", b"y"), format_=format_)
    assert names(content, step) == ["bin/echo", LONG, "etc/passwd"]
    packed = gzip.compress(content)
    assert names(packed, step, "application/vnd.oci.image.layer.v1.tar+gzip") == ["bin/echo", LONG, "etc/passwd"]


@pytest.mark.parametrize("step", [1, 100, 10_000])
def test_all_members_of_a_gzip_file_are_read(step):
    content = tar(("bin/echo", b"x" * 700), ("etc/passwd", b"y"), ("bin/sh", b"z"))
    packed = gzip.compress(content[:300]) + gzip.compress(b"") + gzip.compress(content[300:]) + bytes(20)
    assert names(packed, step, "application/vnd.oci.image.layer.v1.tar+gzip") == ["bin/echo", "etc/passwd", "bin/sh"]


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        ([tar(("bin/sh", b"x"))], True),
        ([tar(("./bin/sh", "busybox"))], True),
        ([tar(("bin", "usr/bin"), ("usr/bin/sh", b"x"))], True),
        ([tar(("usr/bin/sh", b"x")), tar(("bin", "/usr/bin"))], True),
        ([tar(("usr/bin/sh", b"x"))], False),
        ([tar(("app/bin/sh", b"x"), ("bin/shuf", b"x"))], False),
        ([tar(("app", b"x"))], False),
        ([], False),
    ],
)
def test_shell_is_found_where_a_container_has_it(layers, found):
    assert finds_shell(*layers) is found


@pytest.mark.parametrize("media_type", ["application/vnd.oci.image.layer.v1.tar+zstd", "", "text/plain"])
def test_layer_of_another_type_is_unknown(media_type):
    with pytest.raises(InvalidLayer):
        LayerReader(media_type)


def test_header_without_an_end_is_unknown():
    header = bytearray(tar(("x", b""))[:512])
    header[156:157], header[124:136] = b"L", b"77777777777\0"
    with pytest.raises(InvalidLayer, match="too long"):
        names(bytes(header), 512)


@given(st.binary(max_size=3000), st.sampled_from(["tar", "tar+gzip"]))
def test_any_bytes_are_names_or_an_invalid_layer(content, kind):
    try:
        names(content, 700, kind)
    except InvalidLayer:
        return

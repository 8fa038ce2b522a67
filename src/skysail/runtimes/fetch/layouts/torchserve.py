"""Layout for TorchServe: `MODEL.mar` in its model store."""

from __future__ import annotations

import zipfile
from pathlib import Path

from skysail.runtimes.fetch.errors import InvalidContent
from skysail.runtimes.fetch.unpack.archives import readable
from skysail.runtimes.fetch.unpack.paths import files_in

_MANIFEST = "MAR-INF/MANIFEST.json"
_MAKE = "create it with `torch-model-archiver --model-name NAME --version 1.0 --serialized-file FILE --handler HANDLER`"


def lay_out(tree: Path, into: Path, name: str) -> None:
    archives = [tree / path for path in files_in(tree) if path.suffix == ".mar"]
    if len(archives) != 1:
        names = ", ".join(path.name for path in archives) or "none"
        raise InvalidContent("UnsupportedFormat", f"TorchServe needs one .mar file, but there is {names}: {_MAKE}.")
    if not _is_whole(archives[0]):
        raise InvalidContent("UnsupportedFormat", f"{archives[0].name} is not a TorchServe model archive: {_MAKE}.")
    archives[0].rename(into / f"{name}.mar")


def _is_whole(archive: Path) -> bool:
    with readable(f"{archive.name} is damaged: upload it again."):
        if not zipfile.is_zipfile(archive):
            return False
        with zipfile.ZipFile(archive) as file:
            return _MANIFEST in file.namelist()

"""`skysail image`: images on this machine, loaded from files or replaced by environments."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.commands.up import HomeOption
from skysail.cli.options import NamedOutputFormat, NamedOutputOption

if TYPE_CHECKING:
    from skysail.local.images.environments import Environments
    from skysail.local.images.loaded_images import LoadedImages
    from skysail.local.images.rules import CopiedDir, Rules


def application() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage the images of this machine.")
    app.command()(add)
    app.command()(load)
    app.command(name="list")(list_images)
    app.command(name="rm")(remove)
    return app


def add(
    pattern: Annotated[str, typer.Argument(help="Pattern of images, such as 'pytorch/pytorch:*'.")],
    packages: Annotated[list[str] | None, typer.Option("--with", help="Packages, separated by commas.")] = None,
    requirement: Annotated[
        list[Path] | None, typer.Option("--requirement", "-r", help="File with packages, such as requirements.txt.")
    ] = None,
    python: Annotated[str, typer.Option(help="Installed Python version, such as 3.12 [default: Skysail's own].")] = "",
    copy: Annotated[
        list[str] | None,
        typer.Option(help="FOLDER:/path: copy the folder to this path in each container. May be repeated."),
    ] = None,
    entrypoint: Annotated[str, typer.Option(help="Command of containers that name none; their args follow it.")] = "",
    cmd: Annotated[str, typer.Option(help="Arguments, or the whole command, of containers that name none.")] = "",
    home: HomeOption = None,
) -> None:
    """Create an environment for these images. Containers use it from their next start on."""
    import asyncio

    from skysail.local.images.rules import Rule

    rules, environments = _open(home)
    rule = Rule(
        pattern=_pattern(pattern),
        packages=_packages(packages or (), requirement or ()),
        python=python,
        entrypoint=_words("--entrypoint", entrypoint),
        default_args=_words("--cmd", cmd),
        copied=_copied(copy or ()),
    )
    asyncio.run(environments.make(rule, lambda step: typer.echo(f"  {step}")))
    rules.add(rule)
    typer.echo(f"Images {pattern} run in {environments.path(rule)}.")


def load(
    path: Annotated[Path, typer.Argument(help="Folder or tar file with an OCI layout, or the file of `docker save`.")],
    name: Annotated[list[str] | None, typer.Option(help="Name of the image [default: the names in the file].")] = None,
    home: HomeOption = None,
) -> None:
    """Load an image. Its containers run in the image's own root."""
    for loaded in _loaded_images(home).load(path, name or (), lambda step: typer.echo(f"  {step}")):
        typer.echo(f"Loaded {', '.join(loaded.names)} ({loaded.bytes >> 20} MiB, {loaded.id}).")


def list_images(home: HomeOption = None, output: NamedOutputOption = NamedOutputFormat.TEXT) -> None:
    """List the loaded images, then the rules in the order in which they are matched."""
    if output is not NamedOutputFormat.TEXT:
        typer.echo(_for_programs(home, output))
        return

    from rich.markup import escape

    from skysail.cli import console

    rules, environments = _open(home)
    if loaded_images := _loaded_images(home).all():
        loaded_table = console.table("loaded image", "command", "user", "size", "id")
        for loaded in loaded_images:
            command = shlex.join((*(loaded.program.entrypoint or ()), *(loaded.program.cmd or ())))
            names, size = "\n".join(loaded.names) or "(no name)", f"{loaded.bytes >> 20} MiB"
            cells = (names, command, loaded.program.user or "root", size, loaded.id.removeprefix("sha256:")[:12])
            loaded_table.add_row(*map(escape, cells))
        console.open_console().print(loaded_table)
    own = {rule.pattern for rule in rules.own()}
    table = console.table("image", "packages", "python", "command", "made")
    for rule in rules.all():
        packages = "this machine's programs" if rule.packages is None else ", ".join(rule.packages)
        made = "yes" if environments.is_made(rule) else "when first used"
        origin = rule.pattern if rule.pattern in own else f"{rule.pattern} (built in)"
        command = shlex.join((*rule.entrypoint, *rule.default_args))
        table.add_row(*map(escape, (origin, packages, rule.python, command, made)))
    console.open_console().print(table)


def _for_programs(home: Path | None, output: NamedOutputFormat) -> str:
    """Return the names of loaded images and the patterns of rules, or all facts as JSON."""
    import msgspec

    rules, environments = _open(home)
    loaded = _loaded_images(home).all()
    if output is NamedOutputFormat.NAME:
        return "\n".join((*(name for each in loaded for name in each.names), *(rule.pattern for rule in rules.all())))
    own = {rule.pattern for rule in rules.own()}
    rows = [
        {**msgspec.to_builtins(rule), "builtIn": rule.pattern not in own, "made": environments.is_made(rule)}
        for rule in rules.all()
    ]
    images = [{"id": each.id, "names": list(each.names), "bytes": each.bytes} for each in loaded]
    return msgspec.json.format(msgspec.json.encode({"loaded": images, "rules": rows})).decode()


def remove(
    pattern: Annotated[str, typer.Argument(help="Name of a loaded image, or pattern of an added rule.")],
    home: HomeOption = None,
) -> None:
    """Remove a loaded image, or an added rule and its environment if no other rule uses it."""
    rules, environments = _open(home)
    if pattern not in {rule.pattern for rule in rules.own()} and _loaded_images(home).remove(pattern):
        typer.echo(f"{pattern} is removed.")
        return
    forgotten = [rule for rule in rules.own() if rule.pattern == pattern]
    rules.remove(pattern)
    for rule in forgotten:
        environments.remove(rule)
    typer.echo(f"{pattern} is removed.")


def _open(home: Path | None) -> tuple[Rules, Environments]:
    import os

    from skysail.local.cluster.home import Home
    from skysail.local.images.environments import open_environments

    return open_environments(Home.of(home, os.environ).root, os.environ)


def _loaded_images(home: Path | None) -> LoadedImages:
    import os

    from skysail.local.cluster.home import Home
    from skysail.local.images.environments import open_loaded_images

    return open_loaded_images(Home.of(home, os.environ).root)


def _pattern(pattern: str) -> str:
    from skysail.local.errors import Misused

    if not pattern.strip():
        raise Misused("The image pattern is empty: give one such as 'team/trainer:*'.")
    return pattern


def _packages(groups: Iterable[str], files: Iterable[Path]) -> tuple[str, ...]:
    """Return the packages of --with and of the files. Raises Misused for a line that is no package."""
    from skysail.local.images import requirements

    named = requirements.split(groups)
    return tuple(dict.fromkeys((*named, *(name for file in files for name in requirements.from_file(file)))))


def _words(option: str, text: str) -> tuple[str, ...]:
    from skysail.local.errors import Misused

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Misused(f"{option} {text} is not a valid shell command: {error}.") from error


def _copied(specs: Sequence[str]) -> tuple[CopiedDir, ...]:
    from skysail.local.errors import Misused

    copied = tuple(map(_copied_dir, specs))
    targets = [copied_dir.target for copied_dir in copied]
    for target in targets:
        if targets.count(target) > 1:
            raise Misused(f"--copy has {target} more than once: put these folders into one, or choose another path.")
    return copied


def _copied_dir(spec: str) -> CopiedDir:
    from skysail.local.bubblewrap import rootfs
    from skysail.local.bubblewrap.host_files import HostFiles
    from skysail.local.errors import Misused
    from skysail.local.images.rules import CopiedDir

    source, _, target = spec.rpartition(":")
    if not source or not target:
        raise Misused(f"--copy {spec} must be FOLDER:/path.")
    if not target.startswith("/"):
        raise Misused(
            f"--copy {spec} must be FOLDER:/path: {target} is not an absolute path. Write {source}:/{target}."
        )
    if not Path(source).is_dir():
        raise Misused(f"--copy {spec} must be FOLDER:/path: folder {source} not found.")
    if rootfs.hides_the_system(target, HostFiles()):
        raise Misused(f"--copy {spec} would hide system files at {target}: choose another path.")
    return CopiedDir(str(Path(source).absolute()), posixpath.normpath(target))

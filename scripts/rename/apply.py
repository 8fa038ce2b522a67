"""Execute a table of renames on an index: `apply.py REPOSITORY INDEX TABLE... [--dry]`."""

from __future__ import annotations

import collections
import fnmatch
import pathlib
import pickle
import re
import sys


import asyncio
import builtins
import keyword
import socket
import subprocess
import threading

COMMON = {
    n
    for c in (dict, list, str, bytes, set, int, pathlib.Path, asyncio.Task, asyncio.Queue, asyncio.Event, socket.socket, subprocess.Popen, threading.Thread, re.Pattern, re.Match, Exception)
    for n in dir(c)
} | {"read", "page", "open", "seek", "result", "status", "json", "text", "mark", "scope"}


def last(key: str) -> str:
    return re.split(r"[.:]", key)[-1]


class Renames:
    def __init__(self, data: dict, tables: list[str]) -> None:
        self.data = data
        self.keys = {k for r in data["refs"] for k in r[3] if not k.startswith("X:")}
        for cls, (_, names, _) in data["classes"].items():
            self.keys.add(cls)
            self.keys.update(f"{cls}.{n}" for n in names)
        self.explicit: dict[str, str] = {}
        self.patterns: list[tuple[str, str, str]] = []
        self.places: dict[tuple[str, str], str] = {}
        self.log: list[str] = []
        self.read(tables)

    def read(self, tables: list[str]) -> None:
        for table in tables:
            for line in pathlib.Path(table).read_text().splitlines():
                if not line.strip() or line.startswith("#"):
                    continue
                old, new = line.split("\t")[:2] if "\t" in line else line.split()[:2]
                old, new = old.strip(), new.strip()
                if not old.startswith(("skysail", "tests", "bench", "scripts", "*", "A:", "?")):
                    old = "skysail." + old
                if "*" in old or "{" in old:
                    condition = ""
                    if "{" in old:
                        old, _, condition = old.partition("{")
                        condition = condition.rstrip("}")
                    self.patterns.append((old, condition, new))
                else:
                    self.explicit[old] = new  # later tables win

    def resolve(self) -> None:
        groups: dict[str, list[str]] = collections.defaultdict(list)
        for key, root in self.data["groups"].items():
            groups[root].append(key)
        self.new: dict[str, str] = {}
        for key, new in self.explicit.items():
            if key not in self.keys:
                self.log.append(f"MISSING {key} -> {new}")
                continue
            if last(key) != new:
                self.put(key, new, "explicit")
            else:
                self.new[key] = new  # stays, also where a pattern fits
        compiled = [(re.compile(fnmatch.translate(p)), c, n, last(p)) for p, c, n in self.patterns]
        for key in sorted(self.keys):
            if key in self.new or key.startswith(("A:", "M:")) or key in self.data["fixed"]:
                continue
            for pattern, condition, new, name in compiled:
                if "*" not in name and name != last(key):
                    continue
                if not re.match(fnmatch.translate(name), last(key)):
                    continue
                if pattern.match(key) and (not condition or fnmatch.fnmatch(self.data["vars"].get(key, ""), condition)):
                    if "\\1" in new:
                        tail = re.match(fnmatch.translate(name).replace("(?s:", "").replace(")\\Z", "").replace("\\Z", "").replace(".*", "(.*)"), last(key))
                        new = new.replace("\\1", tail.group(1))
                    choices = self.choices(key, new)
                    if not choices:
                        continue
                    self.new[key], self.others[key] = choices[0], choices[1:]
                    self.weak.add(key)
                    break
        self.follow_classes()
        # overriding members and structural implementations follow
        for members in groups.values():
            strong = {self.new[m] for m in members if m in self.new and m not in self.weak}
            weak = {self.new[m] for m in members if m in self.new}
            wanted = strong or weak
            if not wanted:
                continue
            if len(wanted) > 1:
                self.log.append(f"CONFLICT in a group: {sorted((m, self.new.get(m, '-')) for m in members)}")
                continue
            new = wanted.pop()
            for m in members:
                if m not in self.new or m in self.weak:
                    self.new[m] = new
                    if m in self.data["external"] and last(m) != new:
                        self.log.append(f"EXTERNAL {m} -> {new}")
        # parameters of overriding methods follow
        for members in groups.values():
            parameters: dict[str, str] = {}
            for m in members:
                for name in self.data["functions"].get(m, (0, 0, []))[2]:
                    if f"{m}:{name}" in self.new:
                        parameters[name] = self.new[f"{m}:{name}"]
            for m in members:
                for name in self.data["functions"].get(m, (0, 0, []))[2]:
                    if name in parameters:
                        self.new[f"{m}:{name}"] = parameters[name]

    weak: set[str] = set()
    others: dict[str, list[str]] = {}

    def choices(self, key: str, new: str) -> list[str]:
        found = []
        for choice in new.split("|"):
            if "%type" in choice:
                name = self.by_type(key)
                if name:
                    found.append(choice.replace("%type", name))
            else:
                found.append(choice)
        return [c for c in found if c != last(key) and not keyword.iskeyword(c) and c not in dir(builtins)]

    def by_type(self, key: str) -> str:
        """Name of a variable by its class."""
        full = self.data["full"].get(key, "").replace("builtins.", "").removesuffix(" | None").removesuffix("?")
        many = re.fullmatch(r"(?:list|tuple|set|frozenset)\[([\w.]+)(?:, \.\.\.)?\]", full)
        cls = many[1] if many else full
        if cls not in self.data["classes"] or cls.startswith("tests."):
            return ""
        new = self.new.get(cls, last(cls)).lstrip("_")
        name = self.short_names.get(new) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", new).lower()
        if not many:
            return name
        return name[:-1] + "ies" if name.endswith("y") else name + ("es" if name.endswith(("s", "x")) else "s")

    short_names: dict[str, str] = {}

    def follow_classes(self) -> None:
        """Variables and fields that bear the old name of their class bear the new one."""
        def snake(name: str) -> str:
            return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("_")).lower()

        renamed = {}
        for key, new in self.new.items():
            if key in self.data["classes"] and last(key) != new:
                renamed[key] = (snake(last(key)), self.short_names.get(new, snake(new)))
        for key in sorted(self.keys):
            if key in self.new or key.startswith(("A:", "M:")) or key not in self.data["full"] or key in self.data["fixed"]:
                continue
            owner = key.rpartition(".")[0]
            if ":" not in key and (not last(key).startswith("_") or not key.startswith("skysail.")):
                continue
            name = last(key)
            core = name.strip("_")
            for cls in re.findall(r"[\w.]+", self.data["full"][key]):
                if cls not in renamed:
                    continue
                old, new = renamed[cls]
                if core == old:
                    self.new[key] = name.replace(core, new)
                elif core == old + "s":
                    self.new[key] = name.replace(core, new + ("es" if new.endswith("s") else "s"))
                else:
                    continue
                self.weak.add(key)
                break

    def put(self, key: str, new: str, why: str) -> None:
        self.new[key] = new

    def name_of(self, ref) -> str:
        """What stands at a reference afterwards."""
        path, offset, name, keys, kind, scope = ref
        if (path, offset) in self.places:
            return self.places[path, offset]
        wanted = set()
        for key in keys:
            if key.startswith("A:"):
                wanted.add(self.new.get(key, name))
            elif key.startswith("M:"):
                wanted.add(self.modules.get((path, key, name), name))
            elif last(key) == name:
                wanted.add(self.new.get(key, name))
            else:
                wanted.add(self.aliases.get((path, key, name), name))
        if len(wanted) > 1:
            self.log.append(f"SPLIT {path}:{offset} {name}: {[(k, self.new.get(k)) for k in keys]}")
            return name
        return wanted.pop()

    def prepare_aliases(self) -> None:
        self.aliases: dict = {}
        self.modules: dict = {}
        for path, _, name, keys, kind, _ in self.data["refs"]:
            if kind == "alias":
                key = keys[0]
                target = key.split("=", 1)[1]
                if key in self.new:
                    (self.modules if target.startswith("M:") else self.aliases)[path, target, name] = self.new[key]

    def unresolved(self) -> None:
        """Attributes of unknown things: renamed where every class that has such a member agrees."""
        members: dict[str, set[str]] = collections.defaultdict(set)
        for cls, (_, names, _) in self.data["classes"].items():
            for n in names:
                members[n].add(self.new.get(f"{cls}.{n}", n))
        parameters: dict[str, set[str]] = collections.defaultdict(set)
        for function, (_, _, names) in self.data["functions"].items():
            for n in names:
                parameters[n].add(self.new.get(f"{function}:{n}", n))
        for path, offset, name, why, scope in self.data["unresolved"]:
            wanted = members.get(name, set()) | (parameters.get(name, set()) if why == "keyword" else set())
            line = self.line(path, offset)
            place = self.explicit_place(path, line, name)
            if place:
                self.places[path, offset] = place
            elif wanted == {name} or not wanted:
                continue
            elif len(wanted) == 1 and why == "any" and name not in COMMON:
                self.places[path, offset] = wanted.pop()
            elif why == "any":
                self.log.append(f"UNKNOWN {line}: {name} -> {sorted(wanted)}: {self.source(path, offset)}")
            elif why == "keyword":
                self.log.append(f"KEYWORD {line}: {name} -> {sorted(wanted)}: {self.source(path, offset)}")

    def explicit_place(self, path: str, line: str, name: str) -> str | None:
        source = None
        for (where, old), new in self.place_rows.items():
            if old == name and re.search(where, f"{line}: {self.source(path, self.offset_now)}"):
                return new
        return source

    place_rows: dict = {}

    def line(self, path: str, offset: int) -> str:
        self.offset_now = offset
        return f"{path}:{self.texts[path].count(chr(10), 0, offset) + 1}"

    def source(self, path: str, offset: int) -> str:
        text = self.texts[path]
        return text[text.rfind("\n", 0, offset) + 1 : text.find("\n", offset)].strip()

    def collisions(self) -> None:
        """Weak renames that would capture another name are taken back; strong ones are reported."""
        for _ in range(8):
            taken = self.find_collisions()
            back = {k for ks in taken for k in ks if k in self.weak and k in self.new}
            if not back:
                break
            for k in back:
                if self.others.get(k):
                    self.new[k] = self.others[k].pop(0)
                    continue
                self.log.append(f"TAKEN {k} stays: {self.new[k]} is in use")
                del self.new[k]
        for ks in taken:
            for k in sorted(ks):
                if ":" in k and k in self.new and not k.startswith(("A:", "M:", "X:")):
                    self.log.append(f"SUFFIX {k}: {self.new[k]} is in use")
                    self.new[k] += "_"
                    break
        for ks in self.find_collisions():
            self.log.append(f"COLLISION {sorted((k, self.new.get(k, '-')) for k in ks)}")

    def find_collisions(self) -> list[set[str]]:
        uses: dict[tuple[str, str], dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
        log, self.log = self.log, []
        for ref in self.data["refs"]:
            path, offset, name, keys, kind, scope = ref
            if kind in {"member", "keyword", "import-as"}:
                continue
            new = self.name_of(ref)
            qual = scope
            while True:
                uses[path, qual][new].update(keys)
                if qual in self.data["functions"] and qual.rpartition(".")[0] in self.data["functions"]:
                    qual = qual.rpartition(".")[0]
                else:
                    break
        self.log = log
        found = []
        for path, bound in self.data["sites"].items():
            for local, key in bound.items():
                pass
        for (path, scope), names in uses.items():
            for new, keys in names.items():
                plain = {k for k in keys if not k.startswith("A:")}
                if len(plain) > 1 and any(k in self.new for k in plain):
                    quals = {k.replace("X:", "") for k in plain}
                    if len(quals) > 1:
                        found.append(plain)
        # module level: two globals with one name
        for path, bound in self.data["sites"].items():
            news: dict[str, set[str]] = collections.defaultdict(set)
            for local, key in bound.items():
                new = self.new.get(key, local) if last(key) == local else self.aliases.get((path, key, local), local)
                if key.startswith("M:"):
                    new = self.modules.get((path, key, local), local)
                news[new].add(key)
            for new, ks in news.items():
                if len(ks) > 1 and any(k in self.new for k in ks):
                    found.append(ks)
        for cls, (_, names, _) in self.data["classes"].items():
            news = collections.defaultdict(set)
            for n in names:
                news[self.new.get(f"{cls}.{n}", n)].add(f"{cls}.{n}")
            found += [ks for ks in news.values() if len(ks) > 1]
        return found

    def prose(self, text: str, path: str) -> str:
        """Names in comments and docstrings: in backquotes, or after `Raises`."""
        names: dict[str, set[str]] = collections.defaultdict(set)
        for local, key in self.data["sites"].get(path, {}).items():
            if last(key) == local:
                names[local].add(self.new.get(key, local))
        for key in self.in_file.get(path, ()):
            names[last(key)].add(self.new.get(key, last(key)))

        def renamed(match: re.Match[str]) -> str:
            new = names.get(match[2], {match[2]})
            return f"{match[1]}{next(iter(new))}" if len(new) == 1 else match.group()

        def each(match: re.Match[str]) -> str:
            found = re.sub(r"(Raises |raises |`)([A-Za-z_]\w*)(?=[`,:.( ])", renamed, match.group())
            return re.sub(r"(`[A-Za-z_]\w*\.)([A-Za-z_]\w*)(?=[`(])", renamed, found)

        return re.sub(r'(?m)^[ \t]*"""[\s\S]*?"""|#[^\n]*', each, text)

    def embedded(self, text: str, path: str) -> str:
        """Programs inside of strings: names that they import from us, and attributes of modules that they import."""

        def renamed(match: re.Match[str]) -> str:
            body = match.group()
            if not re.search(r"(from skysail[\w.]* import|import skysail)", body):
                return body
            for module, names in re.findall(r"from (skysail[\w.]*|tests[\w.]*) import ([\w, ]+)", body):
                for name in re.findall(r"\w+", names):
                    key = f"{module}.{name}"
                    if self.new.get(key, name) != name:
                        body = re.sub(rf"(?<![\w.\"]){name}\b(?!\s*=[^=])", self.new[key], body)
                    inner = f"{module}.{name}"
                    for attribute in set(re.findall(rf"\b{name}\.(\w+)", body)):
                        new = self.new.get(f"{inner}.{attribute}", attribute)
                        body = re.sub(rf"\b{name}\.{attribute}\b", f"{name}.{new}", body)
            return body

        if not path.startswith(("tests", "bench")):
            return text
        return re.sub(r'"""[\s\S]*?"""|"(?:[^"\\\n]|\\.)*"', renamed, text)

    def edit(self, repository: pathlib.Path, *, dry: bool) -> int:
        self.in_file: dict[str, set[str]] = collections.defaultdict(set)
        modules = {}
        for path, _, _, keys, kind, _ in self.data["refs"]:
            if kind in {"def", "param"}:
                self.in_file[path].update(k for k in keys if not k.startswith(("X:", "M:", "A:")))
        for cls, (_, members, _) in self.data["classes"].items():
            for path, keys in self.in_file.items():
                if cls in keys:
                    keys.update(f"{cls}.{m}" for m in members)
        edits: dict[str, dict[int, tuple[str, str]]] = collections.defaultdict(dict)
        for ref in self.data["refs"]:
            path, offset, name = ref[:3]
            new = self.name_of(ref)
            if new != name:
                edits[path][offset] = (name, new)
        for (path, offset), new in self.places.items():
            name = re.compile(r"\w+").match(self.texts[path], offset).group()
            if new != name:
                edits[path][offset] = (name, new)
        count = 0
        for path, text in self.texts.items():
            if path not in edits and self.embedded(text, path) != text:
                edits[path] = {}
        for path, places in edits.items():
            text = self.texts[path]
            for offset in sorted(places, reverse=True):
                name, new = places[offset]
                assert text[offset : offset + len(name)] == name, (path, offset, name)
                text = text[:offset] + new + text[offset + len(name) :]
                count += 1
            text = self.prose(self.embedded(text, path), path)
            text = re.sub(r"(?<![.\w])(\w+) as \1\b(?=\s*[,)\n])", r"\1", text)
            if not dry:
                (repository / path).write_text(text)
        return count


def main() -> None:
    arguments = [a for a in sys.argv[1:] if a != "--dry"]
    repository = pathlib.Path(arguments[0]).resolve()
    data = pickle.loads(pathlib.Path(arguments[1]).read_bytes())
    tables = [a for a in arguments[2:] if not a.endswith((".places", "short-names.txt"))]
    renames = Renames(data, tables)
    for a in arguments[2:]:
        if a.endswith(".places"):
            for line in pathlib.Path(a).read_text().splitlines():
                if line.strip() and not line.startswith("#"):
                    where, old, new = line.split("\t")
                    Renames.place_rows[where, old] = new
    for a in arguments[2:]:
        if a.endswith("short-names.txt"):
            Renames.short_names.update(line.split() for line in pathlib.Path(a).read_text().splitlines() if line.strip())
    renames.texts = {p: (repository / p).read_text() for p in {r[0] for r in data["refs"]} | {u[0] for u in data["unresolved"]}}
    renames.resolve()
    renames.prepare_aliases()
    renames.collisions()
    renames.unresolved()
    count = renames.edit(repository, dry="--dry" in sys.argv)
    for line in sorted(set(renames.log)):
        print(line)
    print(f"{len(renames.new)} names, {count} places")


main()

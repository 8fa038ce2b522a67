"""Index every definition and reference of the Python sources of a repository, with mypy as the oracle for types.

A reference is (file, offset, old name, keys). Keys name definitions:
  `skysail.core.controller.Loop`            a global
  `skysail.core.controller.Loop.changed`    a member of a class (method, field, enum value)
  `skysail.core.controller.Loop.changed:new`  a parameter or local variable
  `M:skysail.core.controller@local`         a module, bound to the local name
"""

from __future__ import annotations

import ast
import os
import pathlib
import pickle
import re
import sys

from mypy import build, nodes, state, types
from mypy.config_parser import parse_config_file
from mypy.find_sources import create_source_list
from mypy.options import Options
from mypy.subtypes import is_subtype
from mypy import patterns

TOPS = ("src", "tests", "bench", "scripts")


def checked(repository: pathlib.Path):
    os.chdir(repository)
    options = Options()
    parse_config_file(options, lambda: None, "pyproject.toml", sys.stdout, sys.stderr)
    options.files = None
    options.export_types = options.preserve_asts = options.check_untyped_defs = True
    options.incremental = False
    options.cache_dir = os.devnull
    options.explicit_package_bases = options.namespace_packages = True
    options.mypy_path = ["src", "."]
    options.warn_unreachable = False
    options.python_executable = str(repository / ".venv/bin/python")
    return build.build(create_source_list(list(TOPS), options, allow_empty_dir=True), options)


_SKIPPED = {"node", "info", "type", "def_frame", "unanalyzed_type", "original_def", "method_type", "fullname", "names", "defs_by_name"}
_WALKED = (nodes.Statement, nodes.Expression, nodes.Block, nodes.FuncItem, nodes.Argument, patterns.Pattern, nodes.MypyFile, nodes.SymbolNode)
_ATTRIBUTES: dict[type, list[str]] = {}


def attributes(cls: type) -> list[str]:
    if cls not in _ATTRIBUTES:
        _ATTRIBUTES[cls] = [
            n for n in dir(cls)
            if not n.startswith("__") and n not in _SKIPPED and type(getattr(cls, n, None)).__name__ == "getset_descriptor"
        ]
    return _ATTRIBUTES[cls]


def every_node(tree):
    """Every statement, expression and pattern of a module."""
    seen: set[int] = set()
    stack: list = [tree]
    while stack:
        o = stack.pop()
        if isinstance(o, list | tuple):
            stack.extend(o)
            continue
        if isinstance(o, dict) or o is None or not isinstance(o, _WALKED) or id(o) in seen:
            continue
        if isinstance(o, nodes.MypyFile) and o is not tree:
            continue
        if isinstance(o, nodes.TypeInfo | nodes.Var | nodes.TypeAlias):
            continue
        seen.add(id(o))
        yield o
        if isinstance(o, nodes.NameExpr):
            continue
        if isinstance(o, nodes.MypyFile):
            stack.append(o.defs)
            continue
        for name in attributes(type(o)):
            try:
                stack.append(getattr(o, name))
            except AttributeError:
                pass


class Positions:
    def __init__(self, tree) -> None:
        self.members: dict = {}
        self.calls: dict = {}
        self.supers: dict = {}
        self.names: dict = {}
        self.classes: dict = {}
        self.functions: dict = {}
        self.exprs: dict = {}
        for o in every_node(tree):
            if isinstance(o, nodes.ClassDef):
                self.classes[(o.line, o.name)] = o.info
            if isinstance(o, nodes.FuncDef):
                self.functions[(o.line, o.name)] = o
            if not isinstance(o, nodes.Expression):
                continue
            at = (o.line, o.column, o.end_line, o.end_column)
            if isinstance(o, nodes.MemberExpr):
                self.members.setdefault(at, o)
            elif isinstance(o, nodes.SuperExpr):
                self.supers.setdefault(at, o)
            elif isinstance(o, nodes.NameExpr):
                self.names.setdefault(at, o)
            elif isinstance(o, nodes.CallExpr):
                self.calls.setdefault(at, o)
            else:
                self.exprs.setdefault(at, o)


class Scope:
    def __init__(self, kind: str, qual: str, parent: Scope | None, info=None) -> None:
        self.kind, self.qual, self.parent, self.info = kind, qual, parent, info
        self.bound: dict[str, str] = {}  # name -> key
        self.defs: dict[str, ast.AST] = {}


class Binder(ast.NodeVisitor):
    """Names bound in one function (comprehensions and lambdas count as part of it)."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.imports: dict[str, tuple[str, str]] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.functions: dict[str, ast.AST] = {}

    def visit_FunctionDef(self, node) -> None:
        self.names.add(node.name)
        self.functions[node.name] = node
        for d in node.decorator_list:
            self.visit(d)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node) -> None:
        self.names.add(node.name)

    def visit_Lambda(self, node) -> None:
        for a in every_arg(node.args):
            self.names.add(a.arg)
        self.generic_visit(node)

    def visit_Name(self, node) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del):
            self.names.add(node.id)

    def visit_ExceptHandler(self, node) -> None:
        if node.name:
            self.names.add(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node) -> None:
        if node.name:
            self.names.add(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node) -> None:
        if node.rest:
            self.names.add(node.rest)
        self.generic_visit(node)

    def visit_ImportFrom(self, node) -> None:
        for a in node.names:
            self.names.add(a.asname or a.name)
            self.imports[a.asname or a.name] = (node.module or "", a.name)

    def visit_Import(self, node) -> None:
        for a in node.names:
            local = a.asname or a.name.split(".")[0]
            self.names.add(local)
            self.imports[local] = (a.name if a.asname else a.name.split(".")[0], "")

    def visit_Global(self, node) -> None:
        self.globals.update(node.names)

    def visit_Nonlocal(self, node) -> None:
        self.nonlocals.update(node.names)


def every_arg(a: ast.arguments) -> list[ast.arg]:
    return [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])]


class Walker(ast.NodeVisitor):
    def __init__(self, index: Index, path: str, module: str, tree, text: str, positions: Positions) -> None:
        self.index, self.path, self.module, self.file = index, path, module, tree
        self.text, self.positions = text, positions
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.ascii = [line.isascii() for line in self.lines]
        self.scope = Scope("module", module, None)
        self.scopes_seen: list[Scope] = [self.scope]

    # positions
    def offset(self, line: int, column: int) -> int:
        if self.ascii[line - 1]:
            return self.starts[line - 1] + column
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode(errors="replace"))

    def start(self, node) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node) -> int:
        return self.offset(node.end_lineno, node.end_col_offset)

    def emit(self, offset: int, name: str, keys, *, kind: str = "member", scope: str = "") -> None:
        keys = tuple(sorted(set(keys)))
        if self.text[offset : offset + len(name)] != name:
            self.index.problems.append(f"{self.path}: {name} is not at {offset}: {self.text[offset:offset+20]!r}")
            return
        if keys:
            self.index.refs.append((self.path, offset, name, keys, kind, scope or self.scope.qual))

    def unresolved(self, offset: int, name: str, why: str) -> None:
        self.index.unresolved.append((self.path, offset, name, why, self.scope.qual))

    # scopes
    def lookup(self, name: str) -> list[str]:
        scope, first = self.scope, True
        while scope is not None:
            if scope.kind == "function" or (scope.kind == "class" and first):
                if name in scope.bound:
                    return [scope.bound[name]]
            if scope.kind == "module":
                return self.index.global_keys(self.module, name, scope.bound)
            first = False
            scope = scope.parent
        return []

    def bind_key(self, name: str) -> list[str]:
        return self.lookup(name)

    def function(self, node, name: str) -> None:
        qual = f"{self.scope.qual}.{name}" if self.scope.kind != "module" else f"{self.module}.{name}"
        if self.scope.kind == "class" and self.scope.info is not None:
            qual = f"{self.scope.info.fullname}.{name}"
        inner = Scope("function", qual, self.scope)
        binder = Binder()
        for statement in node.body:
            binder.visit(statement)
        for a in every_arg(node.args):
            inner.bound[a.arg] = f"{qual}:{a.arg}"
        defined = self.positions.functions.get((node.lineno, name))
        for argument in defined.arguments if defined is not None else ():
            if argument.variable.type is not None:
                self.index.full[f"{qual}:{argument.variable.name}"] = str(argument.variable.type)
        for bound in binder.names - binder.globals - binder.nonlocals:
            if bound in binder.imports:
                module, symbol = binder.imports[bound]
                key = self.index.import_key(module, symbol, bound)
                if key:
                    inner.bound[bound] = key
                    continue
            inner.bound.setdefault(bound, f"{qual}:{bound}")
        for part in ast.walk(node):
            pairs = []
            if isinstance(part, ast.Assign) and len(part.targets) == 1 and isinstance(part.targets[0], ast.Name):
                pairs.append((part.targets[0].id, part.value, "plain"))
            elif isinstance(part, ast.Assign) and len(part.targets) == 1 and isinstance(part.targets[0], ast.Tuple):
                for number, element in enumerate(part.targets[0].elts):
                    if isinstance(element, ast.Name):
                        pairs.append((element.id, part.value, f"item{number}"))
            elif isinstance(part, ast.withitem) and isinstance(part.optional_vars, ast.Name):
                pairs.append((part.optional_vars.id, part.context_expr, "with"))
            elif isinstance(part, ast.For | ast.comprehension) and isinstance(part.target, ast.Name):
                pairs.append((part.target.id, part.iter, "iter"))
            for name_, expr, mode in pairs:
                if inner.bound.get(name_) == f"{qual}:{name_}":
                    if mode == "plain":
                        self.index.assigned_all.setdefault(f"{qual}:{name_}", []).append(expr)
                    self.index.assigned.setdefault(f"{qual}:{name_}", (expr, mode))
        self.index.functions[qual] = (self.path, node.lineno, [a.arg for a in every_arg(node.args)])
        self.index.returns[qual] = (self, inner, [p.value for p in ast.walk(node) if isinstance(p, ast.Return) and p.value])
        if node.args.kwarg:
            self.index.kwargs[qual] = node.args.kwarg.arg
        if not qual.startswith("skysail.") and (name.startswith("test_") or node.decorator_list):
            self.index.fixed.update(inner.bound[a.arg] for a in every_arg(node.args))
        # decorators, defaults and annotations belong to the outer scope
        for d in node.decorator_list:
            self.visit(d)
        self.signature(node.args, node.returns, inner)
        outer, self.scope = self.scope, inner
        for statement in node.body:
            self.visit(statement)
        self.scope = outer

    def signature(self, a: ast.arguments, returns, inner: Scope) -> None:
        for default in [*a.defaults, *(d for d in a.kw_defaults if d)]:
            self.visit(default)
        for one in every_arg(a):
            if one.annotation:
                self.visit(one.annotation)
            self.emit(self.start(one), one.arg, [inner.bound[one.arg]], kind="param", scope=inner.qual)
            if one.annotation:
                self.index.vars[inner.bound[one.arg]] = ast.unparse(one.annotation)
        if returns:
            self.visit(returns)

    def visit_FunctionDef(self, node) -> None:
        pattern = re.compile(r"(?:async\s+)?def\s+(" + re.escape(node.name) + r")\b")
        match = pattern.match(self.text, self.start(node))
        keys = self.lookup(node.name)
        if match:
            self.emit(match.start(1), node.name, keys, kind="def")
        self.function(node, node.name)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node) -> None:
        a = node.args
        for default in [*a.defaults, *(d for d in a.kw_defaults if d)]:
            self.visit(default)
        for one in every_arg(a):
            self.emit(self.start(one), one.arg, self.local(one.arg), kind="param")
        self.visit(node.body)

    def local(self, name: str) -> list[str]:
        found = self.lookup(name)
        if found and (":" in found[0]):
            return found
        return [f"{self.scope.qual}:{name}"]

    def visit_ClassDef(self, node) -> None:
        match = re.compile(r"class\s+(" + re.escape(node.name) + r")\b").match(self.text, self.start(node))
        info = self.positions.classes.get((node.lineno, node.name))
        if info is None:
            for (line, name), candidate in self.positions.classes.items():
                if name == node.name and abs(line - node.lineno) < 12:
                    info = candidate
        for part in [*node.decorator_list, *node.bases]:
            self.visit(part)
        for keyword in node.keywords:
            self.visit(keyword.value)
        full = info.fullname if info else f"{self.scope.qual}.{node.name}"
        if match:
            self.emit(match.start(1), node.name, [full] if self.scope.kind == "module" else self.lookup(node.name), kind="def")
        inner = Scope("class", full, self.scope, info)
        binder = Binder()
        for statement in node.body:
            binder.visit(statement)
        for bound in binder.names:
            inner.bound[bound] = f"{full}.{bound}"
        outer, self.scope = self.scope, inner
        for statement in node.body:
            self.visit(statement)
        self.scope = outer

    # expressions
    def visit_Name(self, node) -> None:
        keys = self.lookup(node.id)
        self.emit(self.start(node), node.id, keys or [f"X:{node.id}"], kind="name")
        if keys and ":" in keys[0] and isinstance(node.ctx, ast.Store):
            at = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            expr = self.positions.names.get(at)
            typ = self.index.types.get(expr) if expr is not None else None
            if typ is None and isinstance(getattr(expr, "node", None), nodes.Var):
                typ = expr.node.type
            if typ is not None:
                self.index.vars.setdefault(keys[0], short(typ))
                self.index.full.setdefault(keys[0], str(typ))

    def static(self, node) -> object:
        """A module, a class or None that an expression of names and dots stands for."""
        if isinstance(node, ast.Name):
            keys = self.lookup(node.id)
            return self.index.resolve(keys[0]) if len(keys) == 1 else None
        if isinstance(node, ast.Attribute):
            owner = self.static(node.value)
            if isinstance(owner, nodes.MypyFile):
                return self.index.attribute_of_module(owner, node.attr)[1]
        return None

    def visit_Attribute(self, node) -> None:
        self.visit(node.value)
        offset = self.end(node) - len(node.attr)
        self.emit_member(node, node.attr, offset, node.value)

    def emit_member(self, node, attr: str, offset: int, value) -> None:
        owner = self.static(value)
        if isinstance(owner, nodes.MypyFile):
            key, _ = self.index.attribute_of_module(owner, attr)
            if key:
                self.emit(offset, attr, [key])
            return
        if isinstance(owner, nodes.TypeInfo):
            self.emit(offset, attr, self.index.member_keys([owner], attr))
            return
        at = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        special = self.positions.supers.get(at)
        if special is not None and special.info is not None:
            self.emit(offset, attr, self.index.member_keys(special.info.mro[1:], attr, first=True))
            return
        infos, is_any = self.infos(value)
        keys = self.index.member_keys(infos, attr)
        self.emit(offset, attr, keys)
        if not keys and (is_any or not infos) and not self.is_external(value):
            self.unresolved(offset, attr, "any")

    def is_external(self, value) -> bool:
        while isinstance(value, ast.Attribute):
            value = value.value
        return isinstance(value, ast.Name) and not self.lookup(value.id)

    def type_of(self, node):
        at = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        table = {ast.Name: self.positions.names, ast.Attribute: self.positions.members, ast.Call: self.positions.calls}.get(type(node))
        expr = table.get(at) if table is not None else None
        if expr is None:
            expr = self.positions.exprs.get(at)
        return self.index.types.get(expr) if expr is not None else None

    def infos(self, node) -> tuple[list, bool]:
        if isinstance(node, ast.Await):
            pass
        typ = self.type_of(node)
        infos, is_any = infos_of(typ)
        if not infos and is_any:
            infos, _ = infos_of(self.guess(node))
        return infos, is_any

    # what mypy does not know: parameters of tests are fixtures
    def guess(self, node, depth: int = 0):
        if depth > 8:
            return None
        typ = types.get_proper_type(self.type_of(node))
        if typ is not None and not isinstance(typ, types.AnyType):
            if isinstance(typ, types.Instance) and any(isinstance(types.get_proper_type(a), types.AnyType) for a in typ.args):
                pass
            return typ
        if isinstance(node, ast.Name):
            keys = self.lookup(node.id)
            if not keys or ":" not in keys[0]:
                return None
            if keys[0] in self.index.assigned:
                expr, mode = self.index.assigned[keys[0]]
                return self.unwrapped(self.guess(expr, depth + 1), mode)
            function = keys[0].split(":")[0]
            if function in self.index.functions:
                return self.index.fixture_type(self.path, node.id)
            return None
        if isinstance(node, ast.Await):
            return self.unwrapped(self.guess(node.value, depth + 1), "await")
        if isinstance(node, ast.Attribute):
            infos, _ = infos_of(self.guess(node.value, depth + 1))
            for info in infos:
                entry = info.get(node.attr)
                if entry is not None:
                    return self.index.type_of_symbol(entry.node)
            owner = self.static(node.value)
            if isinstance(owner, nodes.MypyFile):
                entry = owner.names.get(node.attr)
                return self.index.type_of_symbol(entry.node) if entry else None
            return None
        if isinstance(node, ast.Call):
            owner = self.static(node.func)
            if isinstance(owner, nodes.TypeInfo):
                return types.Instance(owner, [])
            if isinstance(node.func, ast.Name):
                keys = self.lookup(node.func.id)
                module = self.index.module_of(keys[0]) if keys else None
                if module and ":" not in keys[0]:
                    entry = self.index.ours[module][1].names.get(keys[0][len(module) + 1 :])
                    if entry is not None and isinstance(entry.node, nodes.FuncDef | nodes.Decorator):
                        return self.index.returned(entry.node)
            typ = types.get_proper_type(self.guess(node.func, depth + 1))
            if isinstance(typ, types.CallableType):
                return typ.ret_type
            return None
        if isinstance(node, ast.Subscript):
            return self.unwrapped(self.guess(node.value, depth + 1), "item")
        return None

    def unwrapped(self, typ, mode: str):
        typ = types.get_proper_type(typ)
        if mode == "plain" or typ is None:
            return typ
        if isinstance(typ, types.Instance):
            if mode == "await":
                if typ.type.name not in {"Coroutine", "Awaitable", "Task", "Future"}:
                    return typ  # of a function without annotation
                return typ.args[-1] if typ.args else None
            if mode == "iter" or mode.startswith("item"):
                return typ.args[-1] if typ.args else None
            if mode == "with":
                if typ.type.fullname.startswith("contextlib.") or "ContextManager" in typ.type.name:
                    return typ.args[0] if typ.args else None
                entry = typ.type.get("__enter__") or typ.type.get("__aenter__")
                if entry is not None:
                    found = self.index.returned(entry.node)
                    found = types.get_proper_type(found)
                    if isinstance(found, types.Instance) and found.type.name == "Coroutine":
                        found = found.args[-1]
                    if isinstance(types.get_proper_type(found), types.TypeVarType):
                        return typ
                    return found
        if isinstance(typ, types.TupleType) and mode == "await":
            return typ
        if isinstance(typ, types.TupleType) and mode.startswith("item"):
            number = int(mode[4:] or 0)
            return typ.items[number] if len(typ.items) > number else None
        if isinstance(typ, types.UnionType):
            found = [t for t in (self.unwrapped(item, mode) for item in typ.items) if t is not None]
            return found[0] if found else None
        return None

    def visit_Call(self, node) -> None:
        self.visit(node.func)
        for a in node.args:
            self.visit(a)
        target = node.func
        full = self.callee_name(node.func)
        if full.endswith(("partial", "builds")) and node.args:
            target = node.args[0]
        is_replace = full in {"msgspec.structs.replace", "dataclasses.replace", "copy.replace", "replace"} and node.args
        for keyword in node.keywords:
            self.visit(keyword.value)
            if keyword.arg is None:
                subject = node.args[0] if is_replace else None
                self.index.pending_spreads.append((self, self.scope, target, keyword.value, subject))
                continue
            offset = self.start(keyword)
            if not is_replace and self.is_forwarding(target):
                self.index.pending.append((self, self.scope, offset, keyword.arg, target))
                continue
            if is_replace:
                infos, _ = self.infos(node.args[0])
                keys = self.index.member_keys(infos, keyword.arg)
            else:
                keys = self.keyword_keys(target, keyword.arg)
            self.emit(offset, keyword.arg, keys, kind="keyword")
            if not keys:
                self.unresolved(offset, keyword.arg, "keyword")
        self.attribute_strings(node, full)

    def keys_for(self, target, subject, name: str) -> list[str]:
        if subject is not None:
            infos, _ = self.infos(subject)
            return self.index.member_keys(infos, name)
        return self.keyword_keys(target, name)

    def spread(self, target, value, subject, depth: int = 0) -> None:
        """Keys of a dict that is given as keywords."""
        if depth > 4:
            return
        if isinstance(value, ast.Dict):
            for key, part in zip(value.keys, value.values, strict=True):
                if key is None:
                    self.spread(target, part, subject, depth + 1)
                elif isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isidentifier():
                    offset = self.start(key) + 1
                    if self.text[offset : offset + len(key.value)] == key.value:
                        self.index.pending_strings.append((self, self.scope, offset, key.value, target, subject))
        elif isinstance(value, ast.BinOp):
            self.spread(target, value.left, subject, depth + 1)
            self.spread(target, value.right, subject, depth + 1)
        elif isinstance(value, ast.BoolOp):
            for part in value.values:
                self.spread(target, part, subject, depth + 1)
        elif isinstance(value, ast.IfExp):
            self.spread(target, value.body, subject, depth + 1)
            self.spread(target, value.orelse, subject, depth + 1)
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
            for keyword in value.keywords:
                if keyword.arg:
                    self.index.pending_strings.append((self, self.scope, self.start(keyword), keyword.arg, target, subject))
                else:
                    self.spread(target, keyword.value, subject, depth + 1)
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            keys = self.lookup(value.func.id)
            walker, scope, exprs = self.index.returns.get(keys[0] if keys else "", (None, None, ()))
            if walker is self:
                outer, self.scope = self.scope, scope
                for expr in exprs:
                    self.spread(target, expr, subject, depth + 1)
                self.scope = outer
        elif isinstance(value, ast.Name):
            keys = self.lookup(value.id)
            key = keys[0] if keys else ""
            if key in self.index.assigned_all:
                for expr in self.index.assigned_all[key]:
                    self.spread(target, expr, subject, depth + 1)
            elif key in self.index.constants:
                walker, scope, expr = self.index.constants[key]
                if walker is self:
                    self.spread(target, expr, subject, depth + 1)
            function, _, name = key.partition(":")
            if self.index.kwargs.get(function) == name:
                self.index.forward.setdefault(function, []).append((self, self.scope, target, subject))

    def is_forwarding(self, target) -> bool:
        return any(self.index.signatures.get(k.partition(":")[0], (0, False))[1] for k in self.keyword_keys_(target, "\0"))

    def callee_name(self, func) -> str:
        parts = []
        while isinstance(func, ast.Attribute):
            parts.append(func.attr)
            func = func.value
        if isinstance(func, ast.Name):
            parts.append(func.id)
        return ".".join(reversed(parts))

    def attribute_strings(self, node, full: str) -> None:
        last = full.rpartition(".")[2]
        if last in {"setattr", "getattr", "delattr", "hasattr", "object"} and len(node.args) >= 2:
            subject, name = node.args[0], node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.isidentifier():
                offset = self.start(name) + 1
                if self.text[offset : offset + len(name.value)] == name.value:
                    self.emit_member(subject, name.value, offset, subject)

    def keyword_keys(self, func, name: str) -> list[str]:
        keys = self.keyword_keys_(func, name)
        found: list[str] = []
        for key in keys:
            function, _, _ = key.partition(":")
            if not self.index.module_of(function):
                continue
            info = self.index.signatures.get(function)
            if ":" in key and info is not None and name not in info[0]:
                typ = infos_of(info[2])[0] if info[1] else []
                found += self.index.member_keys(typ, name)
            else:
                found.append(key)
        return found

    def keyword_keys_(self, func, name: str) -> list[str]:
        found: list[str] = []
        owner = self.static(func)
        if isinstance(owner, nodes.TypeInfo):
            return self.index.constructor_keys(owner, name)
        if isinstance(func, ast.Name):
            for key in self.lookup(func.id):
                if f"{key}:{name}" in self.index.parameters or key in self.index.functions_late:
                    return [f"{key}:{name}"]
                if ":" in key:
                    nested = key.replace(":", ".")
                    if nested in self.index.functions:
                        return [f"{nested}:{name}"]
        if isinstance(func, ast.Attribute):
            module = self.static(func.value)
            if isinstance(module, nodes.MypyFile):
                key, target = self.index.attribute_of_module(module, func.attr)
                if isinstance(target, nodes.TypeInfo):
                    return self.index.constructor_keys(target, name)
                if key:
                    return [f"{key}:{name}"]
            infos = [module] if isinstance(module, nodes.TypeInfo) else self.infos(func.value)[0]
            for key in self.index.member_keys(infos, func.attr):
                if key in self.index.methods:
                    found.append(f"{key}:{name}")
            if found:
                return found
        typ = types.get_proper_type(self.type_of(func))
        for item in [typ] if not isinstance(typ, types.UnionType) else typ.items:
            item = types.get_proper_type(item)
            if isinstance(item, types.TypeType):
                inner = types.get_proper_type(item.item)
                if isinstance(inner, types.TypeVarType):
                    inner = types.get_proper_type(inner.upper_bound)
                if isinstance(inner, types.Instance):
                    found += self.index.constructor_keys(inner.type, name)
            if isinstance(item, types.CallableType):
                if item.is_type_obj():
                    found += self.index.constructor_keys(item.type_object(), name)
                elif item.definition is not None and getattr(item.definition, "fullname", ""):
                    found.append(f"{item.definition.fullname}:{name}")
            if isinstance(item, types.Instance):
                found += [f"{k}:{name}" for k in self.index.member_keys([item.type], "__call__")]
        return found

    def visit_Constant(self, node) -> None:
        return

    # statements with names that are no Name nodes
    def visit_ImportFrom(self, node) -> None:
        for a in node.names:
            key = self.index.import_key(node.module or "", a.name, a.asname or a.name)
            local = a.asname or a.name
            if key is None:
                continue
            self.emit(self.start(a), a.name, [key], kind="import" if not a.asname else "import-as")
            if a.asname:
                self.emit(self.end(a) - len(local), local, [f"A:{self.module}:{local}={key}"], kind="alias")

    def visit_Import(self, node) -> None:
        return

    def visit_ExceptHandler(self, node) -> None:
        if node.type:
            self.visit(node.type)
        if node.name:
            begin = self.end(node.type)
            match = re.compile(r"[\s)]*as\s+(" + node.name + r")\b").match(self.text, begin)
            if match:
                self.emit(match.start(1), node.name, self.lookup(node.name), kind="name")
            else:
                self.index.problems.append(f"{self.path}:{node.lineno}: except as {node.name}")
        for statement in node.body:
            self.visit(statement)

    def visit_MatchAs(self, node) -> None:
        if node.pattern:
            self.visit(node.pattern)
        if node.name:
            self.emit(self.end(node) - len(node.name), node.name, self.lookup(node.name), kind="name")

    def visit_MatchStar(self, node) -> None:
        if node.name:
            self.emit(self.end(node) - len(node.name), node.name, self.lookup(node.name), kind="name")

    def visit_MatchMapping(self, node) -> None:
        self.generic_visit(node)
        if node.rest:
            at = self.text.rfind(node.rest, self.start(node), self.end(node))
            self.emit(at, node.rest, self.lookup(node.rest), kind="name")

    def visit_MatchClass(self, node) -> None:
        self.visit(node.cls)
        for p in node.patterns:
            self.visit(p)
        owner = self.static(node.cls)
        if owner is None:
            infos, _ = self.infos(node.cls)
        else:
            infos = [owner] if isinstance(owner, nodes.TypeInfo) else []
            if isinstance(owner, nodes.TypeAlias):
                infos, _ = infos_of(owner.target)
        for name, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            match = re.search(r"\b(" + name + r")\s*=\s*\(?\s*$", self.text[: self.start(pattern)])
            if match:
                self.emit(match.start(1), name, self.index.member_keys(infos, name), kind="keyword")
            self.visit(pattern)

    def visit_Global(self, node) -> None:
        segment = self.text[self.start(node) : self.end(node)]
        for name in node.names:
            match = re.search(r"(?<=[\s,])" + name + r"\b", segment)
            self.emit(self.start(node) + match.start(), name, self.lookup_outer(name, node), kind="name")

    visit_Nonlocal = visit_Global

    def lookup_outer(self, name: str, node) -> list[str]:
        return self.lookup(name)

    def visit_Assign(self, node) -> None:
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        if names in (["__slots__"], ["__all__"], ["__match_args__"]):
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    offset = self.start(part) + 1
                    if names == ["__all__"]:
                        keys = self.lookup(part.value)
                    else:
                        keys = self.index.member_keys([self.scope.info], part.value) if self.scope.info else []
                    if keys and self.text[offset : offset + len(part.value)] == part.value:
                        self.emit(offset, part.value, keys)
        self.generic_visit(node)

    def visit_AnnAssign(self, node) -> None:
        self.visit(node.annotation)
        self.visit(node.target)
        if node.value:
            self.visit(node.value)


def infos_of(typ) -> tuple[list, bool]:
    typ = types.get_proper_type(typ)
    if typ is None or isinstance(typ, types.AnyType | types.UninhabitedType):
        return [], True
    if isinstance(typ, types.Instance):
        return [typ.type], False
    if isinstance(typ, types.UnionType):
        found, is_any = [], False
        for item in typ.items:
            infos, unknown = infos_of(item)
            found += infos
            is_any |= unknown
        return found, is_any
    if isinstance(typ, types.TypeType):
        return infos_of(typ.item)
    if isinstance(typ, types.TypeVarType):
        return infos_of(typ.upper_bound) if not typ.values else infos_of(types.UnionType(typ.values))
    if isinstance(typ, types.TupleType):
        return [typ.partial_fallback.type], False
    if isinstance(typ, types.LiteralType | types.TypedDictType):
        return [typ.fallback.type], False
    if isinstance(typ, types.FunctionLike):
        if typ.is_type_obj():
            return [typ.type_object()], False
        return [typ.fallback.type], False
    return [], False


class Index:
    def __init__(self, repository: pathlib.Path) -> None:
        self.repository = repository
        self.result = checked(repository)
        self.types = self.result.types
        self.refs: list = []
        self.unresolved: list = []
        self.problems: list[str] = []
        self.functions: dict = {}
        self.vars: dict[str, str] = {}
        self.full: dict[str, str] = {}
        self.sites: dict = {}
        self.assigned: dict = {}
        self.assigned_all: dict = {}
        self.constants: dict = {}
        self.kwargs: dict[str, str] = {}
        self.forward: dict = {}
        self.pending: list = []
        self.pending_strings: list = []
        self.pending_spreads: list = []
        self.returns: dict = {}
        self.fixed: set[str] = set()  # parameters that pytest gives by name
        self.signatures: dict = {}
        self.fixtures: dict = {}
        self.functions_late: set = set()
        self.parameters: set[str] = set()
        self.methods: set[str] = set()
        self.exprs: dict = {}
        self.ours = {}
        for name, tree in self.result.files.items():
            path = os.path.relpath(tree.path, repository)
            if path.split("/")[0] in TOPS and path.endswith(".py") and not path.startswith(".."):
                self.ours[name] = (path, tree)
        self.infos: dict[str, nodes.TypeInfo] = {}
        self.by_path = {path: name for name, (path, _) in self.ours.items()}

    def run(self) -> None:
        positions = {}
        for name, (path, tree) in self.ours.items():
            p = positions[name] = Positions(tree)
            for info in p.classes.values():
                if info is not None:
                    self.infos[info.fullname] = info
        for name, (_, tree) in self.ours.items():
            for symbol, entry in tree.names.items():
                node = entry.node
                if isinstance(node, nodes.Decorator):
                    node = node.func
                if isinstance(node, nodes.FuncDef | nodes.OverloadedFuncDef) and node.fullname == f"{name}.{symbol}":
                    self.functions_late.add(node.fullname)
        for name, (_, tree) in self.ours.items():
            for symbol, entry in tree.names.items():
                self.sign(f"{name}.{symbol}", entry.node)
        for info in self.infos.values():
            for symbol, entry in info.names.items():
                self.sign(f"{info.fullname}.{symbol}", entry.node)
                if isinstance(entry.node, nodes.Var) and entry.node.type is not None:
                    self.full[f"{info.fullname}.{symbol}"] = str(entry.node.type)
                if isinstance(entry.node, nodes.Decorator) and entry.node.var.is_property:
                    typ = types.get_proper_type(entry.node.var.type)
                    if isinstance(typ, types.CallableType):
                        self.full[f"{info.fullname}.{symbol}"] = str(typ.ret_type)
                if isinstance(entry.node, nodes.FuncDef | nodes.OverloadedFuncDef | nodes.Decorator):
                    self.methods.add(f"{info.fullname}.{symbol}")
        for name, (path, tree) in self.ours.items():
            text = (self.repository / path).read_text()
            try:
                parsed = ast.parse(text)
            except SyntaxError as error:
                self.problems.append(f"{path}: {error}")
                continue
            walker = Walker(self, path, name, tree, text, positions[name])
            binder = Binder()
            for statement in parsed.body:
                binder.visit(statement)
            for bound in binder.names:
                walker.scope.bound[bound] = f"{name}.{bound}"
            for local, (module, symbol) in binder.imports.items():
                key = self.import_key(module, symbol, local)
                if key:
                    walker.scope.bound[local] = key
                else:
                    walker.scope.bound.pop(local, None)
            for statement in parsed.body:
                if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
                    self.constants[f"{name}.{statement.targets[0].id}"] = (walker, walker.scope, statement.value)
            walker.visit(parsed)
            self.sites[path] = dict(walker.scope.bound)
        self.settle()
        self.group()

    def settle(self) -> None:
        """Keywords that a function hands on are those of the functions that it hands them to."""

        def handed(function: str, name: str, depth: int = 0) -> list[str]:
            found: list[str] = []
            for walker, scope, target, subject in self.forward.get(function, []):
                outer, walker.scope = walker.scope, scope
                for key in walker.keyword_keys_(target, name) if subject is None else walker.keys_for(target, subject, name):
                    found += handed_key(key, name, depth)
                walker.scope = outer
            return found

        def handed_key(key: str, name: str, depth: int = 0) -> list[str]:
            function, colon, _ = key.partition(":")
            signature = self.signatures.get(function)
            if colon and signature is not None and name not in signature[0]:
                return handed(function, name, depth + 1) if signature[1] and depth < 4 else []
            return [key]

        for walker, scope, target, value, subject in self.pending_spreads:
            outer, walker.scope = walker.scope, scope
            walker.spread(target, value, subject)
            walker.scope = outer
        for walker, scope, offset, name, target in self.pending:
            outer, walker.scope = walker.scope, scope
            keys = [k for key in walker.keyword_keys_(target, name) for k in handed_key(key, name)]
            if keys:
                walker.emit(offset, name, keys, kind="keyword")
            else:
                walker.unresolved(offset, name, "keyword")
            walker.scope = outer
        for walker, scope, offset, name, target, subject in self.pending_strings:
            outer, walker.scope = walker.scope, scope
            found = walker.keyword_keys_(target, name) if subject is None else walker.keys_for(target, subject, name)
            keys = [k for key in found for k in handed_key(key, name)]
            if keys:
                walker.emit(offset, name, keys, kind="keyword")
            walker.scope = outer

    def sign(self, key: str, node) -> None:
        """Parameters of a function, whether it takes any keyword, and what it returns."""
        if isinstance(node, nodes.Decorator):
            node = node.func
        if isinstance(node, nodes.FuncDef) and node.fullname == key:
            has_any = any(kind == nodes.ArgKind.ARG_STAR2 for kind in node.arg_kinds)
            self.signatures[key] = (set(node.arg_names), has_any, self.returned(node) if has_any else None)

    # guesses
    def type_of_symbol(self, node):
        if isinstance(node, nodes.Var):
            return node.type
        if isinstance(node, nodes.Decorator):
            typ = types.get_proper_type(node.var.type)
            if node.var.is_property and isinstance(typ, types.CallableType):
                return typ.ret_type
            return typ
        if isinstance(node, nodes.FuncDef):
            typ = types.get_proper_type(node.type)
            return typ if typ is not None else None
        return None

    def returned(self, node):
        """Return type of a function, from its annotation or from what it returns or yields."""
        typ = types.get_proper_type(self.type_of_symbol(node))
        if isinstance(typ, types.CallableType) and not isinstance(types.get_proper_type(typ.ret_type), types.AnyType):
            return typ.ret_type
        function = node.func if isinstance(node, nodes.Decorator) else node
        if not isinstance(function, nodes.FuncDef):
            return None
        typ = types.get_proper_type(function.type)
        if isinstance(typ, types.CallableType) and not isinstance(types.get_proper_type(typ.ret_type), types.AnyType):
            return typ.ret_type
        for o in every_node(function):
            expr = o.expr if isinstance(o, nodes.ReturnStmt | nodes.YieldExpr) else None
            if expr is not None and expr in self.types:
                found = types.get_proper_type(self.types[expr])
                if found is not None and not isinstance(found, types.AnyType | types.NoneType):
                    return found
        return None

    def fixture_type(self, path: str, name: str):
        folder = pathlib.PurePath(path)
        candidates = [str(folder)] + [str(parent / "conftest.py") for parent in folder.parents]
        for candidate in candidates:
            module = self.by_path.get(candidate)
            entry = self.ours[module][1].names.get(name) if module else None
            node = entry.node if entry else None
            if isinstance(node, nodes.Decorator | nodes.FuncDef):
                function = node.func if isinstance(node, nodes.Decorator) else node
                typ = types.get_proper_type(self.returned(function))
                if isinstance(typ, types.Instance) and typ.type.name in {
                    "Iterator", "AsyncIterator", "Generator", "AsyncGenerator", "Coroutine"
                }:
                    typ = typ.args[0] if typ.type.name != "Coroutine" else typ.args[-1]
                return typ
        return None

    # names
    def global_keys(self, module: str, name: str, bound: dict[str, str]) -> list[str]:
        return [bound[name]] if name in bound else []

    def import_key(self, module: str, symbol: str, local: str) -> str | None:
        if not symbol:
            return f"M:{module}" if module in self.ours else None
        full = f"{module}.{symbol}"
        if full in self.ours and not (module in self.ours and symbol in self.ours[module][1].names and not isinstance(self.ours[module][1].names[symbol].node, nodes.MypyFile)):
            return f"M:{full}"
        if module not in self.ours:
            return None
        entry = self.ours[module][1].names.get(symbol)
        if entry is None or entry.node is None:
            return None
        if isinstance(entry.node, nodes.MypyFile):
            return f"M:{entry.node.fullname}" if entry.node.fullname in self.ours else None
        key = entry.node.fullname
        return key if self.module_of(key) else None

    def module_of(self, key: str) -> str | None:
        parts = key.split(":")[0].split(".")
        for count in range(len(parts), 0, -1):
            if ".".join(parts[:count]) in self.ours:
                return ".".join(parts[:count])
        return None

    def resolve(self, key: str):
        if key.startswith("M:"):
            entry = self.ours.get(key[2:])
            return entry[1] if entry else None
        if ":" in key:
            return None
        if key in self.infos:
            return self.infos[key]
        module = self.module_of(key)
        if module is None:
            return None
        rest = key[len(module) + 1 :]
        if "." in rest or not rest:
            return None
        entry = self.ours[module][1].names.get(rest)
        node = entry.node if entry else None
        if isinstance(node, nodes.TypeAlias):
            infos, _ = infos_of(node.target)
            return infos[0] if len(infos) == 1 else node
        return node if isinstance(node, nodes.TypeInfo) else None

    def attribute_of_module(self, module, attr: str):
        entry = module.names.get(attr)
        if entry is None:
            full = f"{module.fullname}.{attr}"
            if full in self.ours:
                return f"M:{full}", self.ours[full][1]
            return None, None
        node = entry.node
        if isinstance(node, nodes.MypyFile):
            return (f"M:{node.fullname}" if node.fullname in self.ours else None), node
        if node is None:
            return None, None
        key = node.fullname
        if not self.module_of(key):
            return None, None
        return key, self.resolve(key) or node

    def member_keys(self, infos, attr: str, *, first: bool = False) -> list[str]:
        found = []
        for info in infos:
            for base in info.mro if not first else [info]:
                if attr in base.names:
                    if self.module_of(base.fullname):
                        found.append(f"{base.fullname}.{attr}")
                    break
            if first and found:
                break
        return found

    def constructor_keys(self, info, name: str) -> list[str]:
        for base in info.mro:
            entry = base.names.get("__init__")
            if entry is not None and not entry.plugin_generated and self.module_of(base.fullname):
                node = entry.node
                if isinstance(node, nodes.FuncDef) and node.line > 0:
                    return [f"{base.fullname}.__init__:{name}"]
        return self.member_keys([info], name)

    # groups of members that must have one name
    def group(self) -> None:
        parent: dict[str, str] = {}

        def find(x: str) -> str:
            while parent.setdefault(x, x) != x:
                parent[x] = parent[parent[x]]
                x = parent[x]
            return x

        self.external: set[str] = set()
        self.links: list = []
        for info in self.infos.values():
            for name in info.names:
                key = f"{info.fullname}.{name}"
                for base in info.mro[1:]:
                    if name in base.names:
                        if self.module_of(base.fullname):
                            parent[find(key)] = find(f"{base.fullname}.{name}")
                            self.links.append((key, f"{base.fullname}.{name}", "override"))
                        elif base.fullname not in {"builtins.object", "msgspec.Struct"}:
                            self.external.add(key)
        protocols = [i for i in self.infos.values() if i.is_protocol]
        with state.state.strict_optional_set(True):
            for protocol in protocols:
                members = [m for m in protocol.protocol_members if not m.startswith("__")]
                if not members:
                    continue
                for info in self.infos.values():
                    if info is protocol or protocol in info.mro:
                        continue
                    if not all(any(m in base.names for base in info.mro) for m in members):
                        continue
                    if not self.fits(info, protocol) and not (len(members) > 1 and not info.fullname.startswith("skysail")):
                        continue
                    for m in members:
                        for key in self.member_keys([info], m):
                            parent[find(key)] = find(f"{protocol.fullname}.{m}")
                            self.links.append((key, f"{protocol.fullname}.{m}", "protocol"))
        # fakes of tests that mypy sees nowhere: they share most of a protocol
        for protocol in protocols:
            members = {m for m in protocol.protocol_members if not m.startswith("__")}
            for full, info in self.infos.items():
                if full.startswith("skysail.") or len(members) < 3:
                    continue
                shared = members & set(info.names)
                if len(shared) >= 3 and len(shared) >= 0.6 * len(members):
                    for m in shared:
                        for key in self.member_keys([protocol], m):
                            parent[find(f"{full}.{m}")] = find(key)
                            self.links.append((f"{full}.{m}", key, "likely"))
        by_name: dict[str, list[str]] = {}
        for full in self.infos:
            by_name.setdefault(full.rpartition(".")[2], []).append(full)
        for error in self.result.errors:
            match = re.search(r'incompatible type "(\w+)"; expected "(\w+)', error) or re.search(r'type "(\w+)", (?:variable|target|base class) .*?type "(\w+)', error)
            if not match:
                continue
            module = self.by_path.get(error.split(":")[0], "")
            fakes = [f for f in by_name.get(match[1], []) if f.startswith(module + ".")] or by_name.get(match[1], [])
            reals = by_name.get(match[2], [])
            if len(fakes) != 1 or fakes[0].startswith("skysail"):
                continue
            for real in reals if len(reals) == 1 else []:
                for base in self.infos[real].mro:
                    if not self.module_of(base.fullname):
                        continue
                    for name in base.names:
                        if not name.startswith("__") and name in self.infos[fakes[0]].names:
                            key = f"{fakes[0]}.{name}"
                            parent[find(key)] = find(f"{base.fullname}.{name}")
                            self.links.append((key, f"{base.fullname}.{name}", "fake"))
        self.groups: dict[str, str] = {x: find(x) for x in parent}

    def fits(self, info, protocol) -> bool:
        def any_instance(i):
            return types.Instance(i, [types.AnyType(types.TypeOfAny.special_form)] * len(i.type_vars))

        try:
            return is_subtype(any_instance(info), any_instance(protocol))
        except Exception:
            return False


def main() -> None:
    repository = pathlib.Path(sys.argv[1]).resolve()
    index = Index(repository)
    index.run()
    out = {
        "refs": index.refs,
        "unresolved": index.unresolved,
        "problems": index.problems,
        "groups": index.groups,
        "links": index.links,
        "external": index.external,
        "functions": index.functions,
        "errors": index.result.errors,
        "classes": {f: (i.line, sorted(i.names), bool(i.is_protocol)) for f, i in index.infos.items()},
        "wire": {
            f
            for f, i in index.infos.items()
            if any(b.fullname in {"skysail.kube.api.fields.Part", "skysail.kube.api.workloads.Read", "skysail.kube.api.objects.Object"} for b in i.mro)
        },
        "vars": index.vars,
        "full": index.full,
        "sites": index.sites,
        "fixed": index.fixed,
    }
    with open(sys.argv[2], "wb") as file:
        pickle.dump(out, file)
    print(len(index.refs), "references,", len(index.unresolved), "unresolved,", len(index.problems), "problems")
    for p in index.problems[:20]:
        print("  ", p)
    sys.stdout.flush()
    os._exit(0)


def short(typ) -> str:
    return re.sub(r"[\w.]+\.(\w+)", r"\1", str(typ))


main()

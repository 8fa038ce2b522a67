"""Names of classes in documents: `after.py REPOSITORY`. Only backquoted names that no other class has."""
import collections, pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1]).resolve()
here = pathlib.Path(__file__).parent
names = collections.defaultdict(set)
for table in sorted((here / "tables").glob("*.txt")):
    for line in table.read_text().splitlines():
        parts = line.split()
        if len(parts) >= 2 and not line.startswith(("#", "*", "A:", "tests")) and table.name != "short-names.txt":
            old, new = re.split(r"[.:]", parts[0])[-1], parts[1]
            if re.fullmatch(r"[A-Z][a-z]+\w*[a-z]", old) and re.fullmatch(r"\w+", new):
                names[old].add(new)
left = set()
for path in (root / "src").rglob("*.py"):
    left.update(re.findall(r"^\s*class (\w+)", path.read_text(), re.M))
taken = (root / "src/skysail/base/names.py").read_text()
unique = {old: next(iter(new)) for old, new in names.items() if len(new) == 1 and old not in left and re.search(r"[a-z][A-Z]", old) and f'"{old}"' not in taken}
if not unique: sys.exit()
pattern = re.compile(r"(?<=`)(" + "|".join(unique) + r")(?=[`.(])")
count = 0
for name in subprocess.run(["git", "-C", root, "ls-files", "docs", "*.md"], capture_output=True, text=True).stdout.split():
    path = root / name
    if path.suffix != ".md" or "reference" in name: continue
    text = path.read_text()
    new = pattern.sub(lambda m: unique[m.group()], text)
    if new != text:
        path.write_text(new); count += 1
        print(name, sorted({m for m in pattern.findall(text)}))

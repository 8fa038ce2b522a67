"""Split string literals of lines that became too long: `split.py REPOSITORY` (ruff names the lines)."""
import collections, io, json, pathlib, re, subprocess, sys, tokenize
root = pathlib.Path(sys.argv[1]).resolve()
LIMIT = 120
def long_lines():
    done = subprocess.run([".venv/bin/ruff", "check", "--select", "E501", "--output-format", "json"], cwd=root, capture_output=True, text=True)
    found = collections.defaultdict(list)
    for row in json.loads(done.stdout or "[]"):
        found[row["filename"]].append(row["location"]["row"])
    return found
def strings(text):
    """(start, end, depth) of each string literal on one line, f-strings as a whole."""
    depth = 0; begun = None; nested = 0
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        if t.type == tokenize.OP and not nested:
            if t.string in "([{": depth += 1
            elif t.string in ")]}": depth -= 1
        if t.type == tokenize.STRING and not nested:
            yield t.start, t.end, depth
        elif t.type == tokenize.FSTRING_START:
            if not nested: begun = t.start
            nested += 1
        elif t.type == tokenize.FSTRING_END:
            nested -= 1
            if not nested: yield begun, t.end, depth
def wrap(lines, row):
    """A row of a table that the formatter leaves alone: break it after a comma."""
    line = lines[row - 1]
    begin = len(line) - len(line.lstrip())
    if line.lstrip().startswith("#") and len(line.split()) > 8:  # a comment
        cut = line.rfind(" ", 0, LIMIT)
        lines[row - 1] = line[:cut] + "\n" + " " * begin + "# " + line[cut + 1 :]
        return True
    places, quote = [], ""
    for i, c in enumerate(line):
        if quote:
            quote = "" if c == quote and line[i - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c == "," and line[i + 1 : i + 2] == " " and 40 < i < LIMIT:
            places.append(i)
    if line[begin].isalpha() and "(" not in line and "=" not in line:  # a sentence of a docstring
        cut = line.rfind(" ", 0, LIMIT)
        lines[row - 1] = line[:cut] + "\n" + " " * begin + line[cut + 1 :]
        return True
    if not places or line[begin] not in "({[":
        return False
    cut = places[-1] + 1
    lines[row - 1] = line[:cut] + "\n" + " " * (begin + (line[begin] in "([{")) + line[cut + 1 :]
    return True


def docstrings(text):
    """Lines that are inside of a string with three quotes."""
    found = {}
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        if t.type == tokenize.STRING and t.string.lstrip("rRbB").startswith('"""'):
            for row in range(t.start[0], t.end[0] + 1):
                found[row] = (t.start, t.end)
    return found


def wrap_docstring(lines, row, start, end):
    line = lines[row - 1]
    begin = len(line) - len(line.lstrip())
    is_one_line = start[0] == end[0]
    if is_one_line:
        if not line.rstrip().endswith('"""'):
            return False
        line = line.rstrip()[:-3].rstrip()
    cut = line.rfind(" ", begin + 20, LIMIT + 1)
    if cut < 0:
        return False
    hang = 2 if re.match(r"\s*[-*] ", line) else 0
    rest = line[cut + 1 :]
    following = lines[row].strip() if not is_one_line and row < len(lines) else ""
    joins = following and following != '"""' and not re.match(r"[-*] ", following) and row + 1 <= end[0] and rest[-1] not in ".:" and len(rest) + len(following) + begin + 1 + hang <= LIMIT
    if joins:
        lines[row - 1] = line[:cut]
        lines[row] = " " * (begin + hang) + rest + " " + following
    else:
        lines[row - 1] = line[:cut] + "\n" + " " * (begin + hang) + rest
    if is_one_line:
        lines[row - 1] += "\n" + " " * begin + '"""'
    return True


def main():
    for file, rows in long_lines().items():
        path = pathlib.Path(file); text = path.read_text(); lines = text.split("\n")
        spans = list(strings(text))
        inside = docstrings(text)
        for row in sorted(rows, reverse=True):
            if row in inside:
                if not wrap_docstring(lines, row, *inside[row]): print(f"{file}:{row}: docstring")
                continue
            here = [s for s in spans if s[0][0] == row == s[1][0] and s[1][1] > 60]
            if not here:
                if not wrap(lines, row): print(f"{file}:{row}: too long, no string")
                continue
            (_, a), (_, b), depth = max(here, key=lambda s: s[1][1] - s[0][1])
            line = lines[row - 1]
            literal = line[a:b]
            prefix = re.match(r"[rbfRBF]*(\"\"\"|\"|')", literal).group()
            if prefix.endswith('"""'): print(f"{file}:{row}: docstring"); continue
            quote = prefix[-1]
            body = literal[len(prefix):-1]
            # a place between words that is in no braces, as near to the middle as fits
            limit = min(LIMIT - a - len(prefix) - 6, len(body) - 1)
            best = None; braces = 0; i = 0
            while i < len(body):
                if "f" in prefix.lower() and body[i] in "{}":
                    if body[i:i+2] in ("{{", "}}") and (braces == 0): i += 2; continue
                    braces += 1 if body[i] == "{" else -1
                if body[i] == " " and braces == 0 and i <= limit: best = i + 1
                i += 1
            if not best:
                if not wrap(lines, row): print(f"{file}:{row}: no place to split")
                continue
            first, second = prefix + body[:best] + quote, prefix + body[best:] + quote
            if "f" in prefix.lower():
                if "{" not in first: first = first.replace("f", "", 1)
                if "{" not in second: second = second.replace("f", "", 1)
            joined = f"{first}\n{' ' * a}{second}"
            if depth == 0: joined = f"({joined})"
            lines[row - 1] = line[:a] + joined + line[b:]
        path.write_text("\n".join(lines))
main()

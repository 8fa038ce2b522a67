"""Put `noqa` comments back that the formatter moved away from their line: `noqa.py REPOSITORY`."""
import collections, json, pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1]).resolve()
def rows():
    done = subprocess.run([".venv/bin/ruff", "check", "--output-format", "json"], cwd=root, capture_output=True, text=True)
    found = collections.defaultdict(list)
    for row in json.loads(done.stdout or "[]"):
        found[row["filename"]].append((row["location"]["row"], row["code"], row["message"]))
    return found
for file, problems in rows().items():
    path = pathlib.Path(file); lines = path.read_text().split("\n")
    stale = [(line, re.search(r"unused: (.*?)\)", message)) for line, code, message in problems if code == "RUF100"]
    for line, match in stale:
        codes = re.findall(r"[A-Z]+\d+", match[1]) if match else []
        for place, code, _ in problems:
            if code in codes and abs(place - line) < 25:
                comment = re.search(r"  # noqa: [^#\n]*", lines[line - 1])
                lines[line - 1] = lines[line - 1].replace(comment.group(), "")
                lines[place - 1] += comment.group()
                break
    path.write_text("\n".join(lines))

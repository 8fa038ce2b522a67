"""Patches of tests/simulation/seeded, for the renamed sources: `seeded.py REPOSITORY COMMIT`.

Each patch is applied to the sources of COMMIT, which are renamed as the repository was; the difference is the new patch.
"""
import difflib, os, pathlib, re, shutil, subprocess, sys, tempfile
root, commit = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
here = pathlib.Path(__file__).parent
patches = sorted((root / "tests/simulation/seeded").glob("*.patch"))
original = {p: subprocess.run(["git", "-C", root, "show", f"{commit}:{p.relative_to(root)}"], capture_output=True, text=True, check=True).stdout for p in patches}
files = {p: re.findall(r"^\+\+\+ b/(\S+)", text, re.M) for p, text in original.items()}
batches: list[list[pathlib.Path]] = []
for p in patches:
    for batch in batches:
        if not {f for q in batch for f in files[q]} & set(files[p]):
            batch.append(p); break
    else:
        batches.append([p])
def renamed(batch):
    copy = pathlib.Path(tempfile.mkdtemp(prefix="seeded-"))
    archive = subprocess.Popen(["git", "-C", root, "archive", commit], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", copy], stdin=archive.stdout, check=True); archive.wait()
    subprocess.run("git init -q && git add -A", shell=True, cwd=copy, check=True)
    for p in batch:
        (copy / "p.patch").write_text(original[p])
        subprocess.run(["git", "apply", "p.patch"], cwd=copy, check=True)
    (copy / "p.patch").unlink(missing_ok=True)
    (copy / ".venv").symlink_to(root / ".venv")
    subprocess.run([here / "core", copy], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "LOG": "/dev/null"})
    return copy
for batch in batches:
    copy = renamed(batch)
    for p in batch:
        head = original[p].partition("--- a/")[0]
        parts = [head]
        for name in files[p]:
            old, new = ((tree / name).read_text().splitlines(keepends=True) for tree in (root, copy))
            parts += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=1)
        p.write_text("".join(parts))
        if len(parts) == 1: print(f"{p.name}: no difference")
    shutil.rmtree(copy)
print(f"{len(patches)} seeded patches in {len(batches)} batches")

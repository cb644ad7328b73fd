"""An installed wheel finds recipes and releases by name, as a checkout does."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from zoo import catalog

ROOT = Path(__file__).resolve().parent.parent


def test_wheel_contains_recipes_and_finds_them_without_the_checkout(tmp_path: Path) -> None:
    options = ("--quiet", "--no-deps", "--wheel-dir", tmp_path)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, ROOT], check=True)
    (wheel,) = tmp_path.glob("contrastive_zoo-*.whl")
    assert wheel.stat().st_size < 25e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = archive.namelist()
    (metadata,) = (tmp_path / "site").glob("contrastive_zoo-*/METADATA")
    readme = metadata.read_text()
    assert "# contrastive-zoo" in readme and "](https://" in readme
    assert not re.search(r"\]\((?!https?:)", readme)  # a link that leads nowhere on a package's page
    card = {f"zoo/release/{name}" for name in ("card.md.j2", "citations.bib", "licenses.txt")}
    assert {"zoo/py.typed", "zoo/report/page.html.j2", *card} <= set(names)
    assert not [n for n in names if n.startswith(("tests/", "recipes/"))]
    code = (
        "import zoo; print(zoo.__file__); print(*zoo.list_models()); "
        "assert zoo.load(zoo.list_models()[0]) is not None; print('\\n'.join(zoo.list_recipes()))"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=tmp_path / "site", env=environment, stdout=-1, text=True, check=True)
    where, releases, *recipes = done.stdout.splitlines()
    assert where.startswith(str(tmp_path))
    assert "tf_efficientnet_lite0.paco_cifar100_lt100" in releases.split()
    assert recipes == catalog.list_recipes()

"""Refresh the libraries of ``coterie view`` from npm; ``make viewer-vendor`` runs this.

The page has no build step, so the minified files that npm publishes are checked in, with licenses and checksums.
"""

import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "src" / "coterie" / "reports" / "viewer" / "vendor"
# htm's standalone file contains Preact 10, whose license is in its own package.
PACKAGES = {
    "htm@3.1.1": {"preact/standalone.umd.js": "htm-preact.js", "LICENSE": "htm.LICENSE"},
    "preact@10.29.8": {"LICENSE": "preact.LICENSE"},
    "uplot@1.6.32": {
        "dist/uPlot.iife.min.js": "uplot.js",
        "dist/uPlot.min.css": "uplot.css",
        "LICENSE": "uplot.LICENSE",
    },
    "d3-hierarchy@3.1.3": {
        "dist/d3-hierarchy.min.js": "d3-hierarchy.js",
        "LICENSE": "d3-hierarchy.LICENSE",
    },
}


def main() -> None:
    """Download the packages and write their files with ``SHA256SUMS``."""
    with tempfile.TemporaryDirectory() as folder:
        for package, files in PACKAGES.items():
            packing = subprocess.run(
                ["npm", "pack", "--silent", "--ignore-scripts", package],
                cwd=folder, check=True, capture_output=True, text=True,
            )  # fmt: skip
            with tarfile.open(Path(folder, packing.stdout.strip())) as archive:
                for name, target in files.items():
                    member = archive.extractfile(f"package/{name}")
                    assert member is not None
                    (VENDOR / target).write_bytes(member.read())
    sums = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(VENDOR.iterdir())
        if path.name != "SHA256SUMS"
    )
    (VENDOR / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()

"""Write the golden payloads of the present format version. They are written once: an existing version is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from wire_cases import LAYOUT, cases  # noqa: E402

from joulegrad import encode  # noqa: E402
from joulegrad.wire import header  # noqa: E402


def main() -> None:
    folder = HERE / "v{}.{}".format(*header.VERSION)
    if folder.exists():
        sys.exit(f"{folder} is there: golden payloads never change")
    folder.mkdir()
    expected = {}
    for name, update, layout in cases():
        (folder / f"{name}.bin").write_bytes(encode(update, layout))
        expected[name] = {
            "layout": "plain" if layout is LAYOUT else "batchnorm",
            "indices": update.indices.tolist(),
            "dtype": str(update.values.dtype),
            "values": [v.hex() for v in update.values.tolist()],
            "levels": None if update.codes is None else update.codes.levels.tolist(),
            "buffers": None if update.buffers is None else [b.hex() for b in update.buffers.tolist()],
        }
    (folder / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

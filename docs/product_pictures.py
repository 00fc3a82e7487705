"""Draw the terminal and the report of a training, for the home page: needs Chromium.

Run it as python docs/product_pictures.py. The training is that of ``pcfed init``.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FOLDER = Path(__file__).parent
COLUMNS, PHONE = 78, 430
COMMANDS = ("pcfed init clinics", "pcfed train clinics/train.toml", "pcfed report runs/train")
FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def terminal(folder: Path) -> str:
    """Run the commands, and return the terminal with what they print as an SVG picture."""
    screen = Console(record=True, width=COLUMNS, file=io.StringIO())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    for command in COMMANDS:
        done = subprocess.run(
            command.split(), cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        screen.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        screen.print(Text.from_ansi(done.stdout))
    picture = screen.export_svg(title="clinics", theme=MONOKAI, font_aspect_ratio=0.6)
    return FONT.sub("", picture)  # a font of another site


def draw(browser: Browser, folder: Path) -> None:
    """Take pictures of the terminal and of the first part of the report."""
    page = browser.new_page(viewport={"width": 900, "height": 900})
    page.set_content(f"<style>body {{margin: 0}} svg {{width: 860px}}</style>{terminal(folder)}")
    page.locator("svg").screenshot(path=FOLDER / "terminal.png")
    tab = browser.new_page(viewport={"width": PHONE, "height": 1150}, device_scale_factor=1.5)
    tab.goto((folder / "runs" / "train" / "report.html").as_uri())
    tab.locator(".main-svg").first.wait_for()
    tab.wait_for_timeout(500)
    tab.screenshot(path=FOLDER / "report.png")


def main() -> None:
    """Draw both pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        draw(browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
